"""A Relation message and the catalog of now -> the layout, with each column's lasting identity (attnum).

The stream lags behind the catalog: a message describes its table as it was when the change was made, the
catalog may already know later names, types and drops. Column numbers are found by name where that is safe,
else by order: a message lists its columns by rising attnum, so an unknown name lies between its known
neighbours. Pure: no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..change import Column, Relation
from ..wire.pgmessages import RelationColumn, RelationMessage
from ..wire.pgvalues import lake_type


@dataclass(frozen=True)
class LiveColumn:
    """A row of pg_attribute. `generated`: '' no, s stored, v virtual. `missing`: the text of the value that
    rows older than the column have. A dropped column keeps its attnum and has no name."""

    attnum: int
    name: str
    type_oid: int
    typmod: int
    missing: str | None = None
    generated: str = ""
    dropped: bool = False


@dataclass(frozen=True)
class LiveTable:
    """What the catalog says of a table now; no columns when it is gone. `primary_key` and `identity_key`
    (the columns of the replica identity's index): attnums."""

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[LiveColumn, ...]
    primary_key: frozenset[int] = frozenset()
    identity_key: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TypeInfo:
    """A type with its modifier: in PostgreSQL's words, and as base type (domains resolved): name of its wire
    conversion and modifier."""

    source_type: str
    kind: str
    typmod: int


Types = Mapping[tuple[int, int], TypeInfo]
"""(type oid, typmod) -> what it is; a type that is gone is not in it."""


def layout(
    message: RelationMessage,
    live: LiveTable,
    types: Types,
    previous: Relation | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Relation:
    """The layout a Relation message announces.

    Args:
        message: what the stream says: names, types, identity; it decides on those.
        live: the catalog now: attnums, primary key, values of rows older than a column.
        types: the types of the message's columns.
        previous: the layout of that table before.
        overrides: `schema.table.column` -> Spark SQL type to use in the lake.
    """
    attnums = column_numbers(message.columns, live.columns, types, previous)
    known = {c.attnum: c for c in previous.columns} if previous else {}
    key = _key(message, attnums, live, known)
    missing = {c.attnum: c.missing for c in live.columns if not c.dropped}
    columns = []
    for attnum, column in zip(attnums, message.columns, strict=True):
        before = known.get(attnum)
        kind = types.get((column.type_oid, column.typmod))
        if kind is None:  # the type was dropped since: the earlier layout may remember it
            kind = (
                TypeInfo(before.source_type, before.kind, -1) if before else TypeInfo("unknown", "text", -1)
            )
        lake, note = lake_type(kind.kind, kind.typmod)
        same = before is not None and before.source_type == kind.source_type
        if override := (overrides or {}).get(f"{message.schema}.{message.name}.{column.name}"):
            lake, note = override, None
        elif (column.type_oid, column.typmod) not in types and before:
            lake, note = before.type, before.note
        # A rewrite of the table forgets the missing value, but rows captured earlier still lack the column.
        value = before.missing if before and same else missing.get(attnum)
        columns.append(
            Column(column.name, attnum, kind.source_type, kind.kind, lake, attnum in key, value, note)
        )
    return Relation(message.relid, message.schema, message.name, message.identity, tuple(columns))


def _key(
    message: RelationMessage, attnums: Sequence[int], live: LiveTable, known: Mapping[int, Column]
) -> set[int]:
    """The row key's attnums: what the message flags, except where it flags everything or nothing."""
    if message.identity in ("d", "i"):
        return {n for n, column in zip(attnums, message.columns, strict=True) if column.flags & 1}
    key = set(live.primary_key) if live.columns else {n for n, column in known.items() if column.key}
    return key if key <= set(attnums) else set()


def column_numbers(
    columns: Sequence[RelationColumn], live: Sequence[LiveColumn], types: Types, previous: Relation | None
) -> list[int]:
    """The attnum of each column of a Relation message.

    >>> live = [LiveColumn(1, "id", 23, -1), LiveColumn(2, "now", 25, -1)]
    >>> column_numbers([RelationColumn(1, "id", 23, -1), RelationColumn(0, "then", 25, -1)], live, {}, None)
    [1, 2]
    """
    by_name = {c.name: c for c in live if not c.dropped}
    before = {c.name: c for c in previous.columns} if previous else {}
    # What the layout before had and the catalog still has is in the message too, under whatever name.
    lasting = {c.attnum for c in before.values()} & {c.attnum for c in by_name.values()}
    choices: list[dict[int, int]] = []
    for column in columns:
        options: dict[int, int] = {}
        here = types.get((column.type_oid, column.typmod))
        if old := before.get(column.name):
            alike = here is not None and old.source_type == here.source_type
            options[old.attnum] = 4 * (old.attnum in lasting) + 2 * alike
        if now := by_name.get(column.name):
            alike = now.type_oid == column.type_oid
            worth = 4 * (now.attnum in lasting) + 2 * alike + 1
            options[now.attnum] = max(worth, options.get(now.attnum, 0))
        choices.append(options)
    return _fill(columns, _rising(choices), live, types, previous)


def _rising(choices: Sequence[Mapping[int, int]]) -> list[int | None]:
    """One of its choices (number -> worth), or None, for each column, so that numbers rise: as many as
    possible, and of those ways the one that is worth most.

    >>> _rising([{1: 0}, {5: 1, 2: 0}, {3: 1}])
    [1, 2, 3]
    """
    only = [next(iter(options), 0) for options in choices if len(options) == 1]
    if len(only) == len(choices) and all(a < b for a, b in zip([0, *only], only, strict=False)):
        return list(only)
    one = 8 * len(choices) + 8  # a number more outweighs everything else
    best: dict[int, tuple[int, tuple[int | None, ...]]] = {0: (0, ())}  # last number -> worth, numbers
    for options in choices:
        grown = {last: (worth, (*path, None)) for last, (worth, path) in best.items()}
        for last, (worth, path) in best.items():
            for number, gain in options.items():
                gained = worth + one + gain
                if number > last and gained > grown.get(number, (-1, ()))[0]:
                    grown[number] = gained, (*path, number)
        best = grown
    return list(max(best.values(), key=lambda found: found[0])[1])


def _fill(
    columns: Sequence[RelationColumn],
    numbers: list[int | None],
    live: Sequence[LiveColumn],
    types: Types,
    previous: Relation | None,
) -> list[int]:
    """Numbers for the names nobody knows: by order, a column of that type first, then one dropped since."""
    old = {c.attnum: c.source_type for c in previous.columns} if previous else {}
    now = {c.attnum: c for c in live}
    filled: list[int] = []
    for at, column in enumerate(columns):
        number = numbers[at]
        if number is None:
            low = filled[-1] if filled else 0
            high = next((n for n in numbers[at + 1 :] if n is not None), None)
            gap = [n for n in sorted({*old, *now}) if low < n and (high is None or n < high)]
            here = types.get((column.type_oid, column.typmod))
            alike = [
                n
                for n in gap
                if (here and old.get(n) == here.source_type)
                or (n in now and not now[n].dropped and now[n].type_oid == column.type_oid)
            ]
            gone = [n for n in gap if n not in now or now[n].dropped]
            number = (alike or gone or gap or [low + 1])[0]
        filled.append(number)
    return filled
