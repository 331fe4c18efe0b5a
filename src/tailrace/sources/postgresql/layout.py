"""Builds the layout from a Relation message and the facts that the catalog proves about its time.

The catalog is ahead of the stream: a message describes its table at the time of a change, and the catalog may
already have later names, types and drops. `column_identity` proves which attribute a column is. An unproved
one becomes a separate column with a negative number, and its value in older rows is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import ConfigError
from ...model.change import Column, Relation
from ...model.types import element_type
from ...wire.pgmessages import RelationColumn, RelationMessage
from ...wire.pgvalues import lake_type
from .column_identity import Bracket, Evidence, Identified, LiveColumn, LiveTable, Moment, identify

MOST = 1600
"""The maximum number of columns of a table, dropped ones included."""
UNKNOWN_COLUMN = (
    "the identity of this column in the source cannot be determined: it counts as a new one, NULL in "
    "older rows"
)
USING = (
    "older rows have other values in the source if the statement had a USING expression, which is not logged"
)
"""Note on a column whose type changed."""
UNKNOWN_VALUE = "NULL in older rows, which may have a default's value in the source"


@dataclass(frozen=True)
class TypeInfo:
    """A type with its modifier.

    Attributes:
        source_type: PostgreSQL's name.
        kind: its wire conversion; domains are resolved to their base type.
        typmod: the base type's modifier.
        physical: length, by-value flag and alignment.
    """

    source_type: str
    kind: str
    typmod: int
    physical: str = ""


Types = Mapping[tuple[int, int], TypeInfo]
"""Types by (type oid, typmod), for existing types."""


def catalogued(
    message: RelationMessage, live: LiveTable, types: Types, overrides: Mapping[str, str] | None = None
) -> Relation:
    """Returns the layout of a table in the catalog; `message` has the columns that are sent."""
    now = {c.name: c for c in live.columns if not c.dropped}
    numbers = [now[c.name].attnum for c in message.columns]
    key = _key(message, numbers, live.primary_key, live.identity_key)
    columns = _columns(message, numbers, key, types, None, overrides or {})
    columns = [replace(c, missing=now[c.name].missing) for c in columns]
    look = live.look
    known = Evidence(live.at, b"", look.count, look.count, 0, look.gone, frozenset(numbers), (look,))
    return _relation(message, columns, known)


def layout(
    message: RelationMessage,
    moment: Moment,
    bracket: Bracket,
    types: Types,
    previous: Relation | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Relation:
    """Returns the layout that a Relation message announces.

    Args:
        message: names, types and identity at the change.
        moment: the time of the change that follows it.
        bracket: the catalog before and after.
        types: the types of the message's columns.
        previous: the table's previous layout.
        overrides: Spark SQL types for the lake by `schema.table.column`.
    """
    earlier = _earlier(previous)
    if previous and moment.address and earlier.address == moment.address:
        return previous  # read again after a crash
    valid = earlier if earlier.lsn <= moment.lsn else Evidence()
    live = bracket.after
    if live.columns:
        forms = {oid: kind.physical for (oid, _), kind in types.items()}
        found = identify(message.columns, forms, bracket.before, live, valid)
    else:
        found = Identified(_by_name(message.columns, types, previous), valid.exists, valid.gone)
    lowest, numbers = _numbered(found.numbers, min(earlier.lowest, 0))
    primary = _primary_key(bracket)
    there = {n for n in live.identity_key if n <= found.exists}
    key = _key(message, numbers, primary or frozenset(), there)
    columns = _columns(message, numbers, key, types, previous, overrides or {})
    if live.columns:
        older = _Older(bracket, valid, previous)
        columns = [older.rows(c, said) for c, said in zip(columns, message.columns, strict=True)]
    look = live.look.after(bracket.before)
    known = Evidence(
        moment.lsn,
        moment.address,
        found.exists,
        max(look.count, found.exists),
        lowest,
        found.gone,
        frozenset(n for n in numbers if n > 0),
        (look,) if bracket.before is None else (bracket.before, look),
        there != live.identity_key if _flagged(message) else primary is None and bool(live.primary_key),
    )
    return _relation(message, columns, known)


def _earlier(previous: Relation | None) -> Evidence:
    """Returns the facts of the previous layout; only its numbers, if it was stored without evidence."""
    if previous is None or previous.evidence:
        return Evidence.parse(previous.evidence if previous else "")
    numbers = frozenset(c.attnum for c in previous.columns)
    return Evidence(exists=max(numbers, default=0), newest=MOST, columns=numbers)


def unknown(made: Relation, previous: Relation | None) -> list[Column]:
    """Returns the columns of a new layout with something unknown that was known in the previous one."""
    had = {c.attnum for c in previous.columns} if previous else set()
    return [c for c in made.columns if c.attnum not in had and c.note in (UNKNOWN_COLUMN, UNKNOWN_VALUE)]


def retyped(made: Relation, previous: Relation | None) -> list[tuple[Column, Column]]:
    """Returns columns (before, after) whose type changed, and whose older rows may have other values.

    While the table's file is the same, no statement has changed values.
    """
    if previous is None or _same_file(Evidence.parse(previous.evidence), Evidence.parse(made.evidence)):
        return []
    had = {c.attnum: c for c in previous.columns}
    both = [(had[c.attnum], c) for c in made.columns if c.attnum in had]
    return [(old, new) for old, new in both if old.source_type != new.source_type]


def _same_file(before: Evidence, after: Evidence) -> bool:
    """Returns whether the catalog proves that the table was not rewritten between two layouts.

    It had the same file before the first (or when that was read from the catalog) and after the second.
    """
    seen = before.looks[:1] if len(before.looks) > 1 or not before.address else ()
    return bool(seen and after.looks) and seen[0].file == after.looks[-1].file != 0


def _relation(message: RelationMessage, columns: Sequence[Column], known: Evidence) -> Relation:
    of = message.relid, message.schema, message.name, message.identity
    return Relation(*of, tuple(columns), known.to_text())


def _numbered(found: Sequence[int | None], lowest: int) -> tuple[int, list[int]]:
    """Returns a number for each column; new negative ones for unknown columns."""
    numbers = []
    for number in found:
        lowest -= number is None
        numbers.append(lowest if number is None else number)
    return lowest, numbers


def _columns(
    message: RelationMessage,
    numbers: Sequence[int],
    key: Collection[int],
    types: Types,
    previous: Relation | None,
    overrides: Mapping[str, str],
) -> list[Column]:
    known = {c.attnum: c for c in previous.columns} if previous else {}
    columns = []
    for attnum, column in zip(numbers, message.columns, strict=True):
        before = known.get(attnum)
        kind = types.get((column.type_oid, column.typmod))
        if kind is None:  # the type was dropped since, but the earlier layout may have it
            kind = (
                TypeInfo(before.source_type, before.kind, -1) if before else TypeInfo("unknown", "text", -1)
            )
        lake, note = lake_type(kind.kind, kind.typmod)
        if override := overrides.get(f"{message.schema}.{message.name}.{column.name}"):
            if attnum in key and element_type(override):
                raise ConfigError(
                    f"{column.name} is part of the key, and a key has no arrays",
                    where=f"{message.schema}.{message.name}",
                    hint="remove it from `types`, so that it is text",
                )
            lake, note = override, None
        elif (column.type_oid, column.typmod) not in types and before:
            lake, note = before.type, before.note
        same = before is not None and before.source_type == kind.source_type
        missing = before.missing if before and same else None
        columns.append(
            Column(column.name, attnum, kind.source_type, kind.kind, lake, attnum in key, missing, note)
        )
    return columns


def _flagged(message: RelationMessage) -> bool:
    """Returns whether a message marks the key's columns; it does not if all or none are marked."""
    return message.identity in ("d", "i")


def _key(
    message: RelationMessage, numbers: Sequence[int], primary: Collection[int], identity: Collection[int]
) -> set[int]:
    """Returns the row key's attribute numbers: the marked columns, or the primary key; empty if a part is not
    sent.

    `identity` are the existing columns of the replica identity's index.
    """
    if _flagged(message):
        flagged = {n for n, column in zip(numbers, message.columns, strict=True) if column.flags & 1}
        return flagged if set(identity) <= set(numbers) or not flagged < set(identity) else set()
    return set(primary) if set(primary) <= set(numbers) else set()


def _primary_key(bracket: Bracket) -> frozenset[int] | None:
    """Returns the primary key at a change; None if it may have been different, or there was none.

    Then all values of a full image identify its row. A constraint's oid is never reused, and its columns
    never change.
    """
    before, after = bracket.before, bracket.after
    if before is None or not after.columns:
        return None
    return after.primary_key if before.key == after.key_id else None


def _by_name(
    columns: Sequence[RelationColumn], types: Types, previous: Relation | None
) -> tuple[int | None, ...]:
    """Identifies the columns of a dropped table by name and type in the previous layout, if the numbers
    ascend."""
    known = {(c.name, c.source_type): c.attnum for c in previous.columns} if previous else {}
    kinds = [types.get((c.type_oid, c.typmod)) for c in columns]
    found = [known.get((c.name, k.source_type)) if k else None for c, k in zip(columns, kinds, strict=True)]
    there = [n for n in found if n is not None and n > 0]
    return tuple(found) if there == sorted(there) else (None,) * len(columns)


@dataclass(frozen=True)
class _Older:
    """Computes the values of columns in rows older than the column."""

    bracket: Bracket
    earlier: Evidence
    previous: Relation | None

    def rows(self, column: Column, said: RelationColumn) -> Column:
        """Returns the column with `missing`, or with a note if that is unknown."""
        now = {c.attnum: c for c in self.bracket.after.columns}.get(column.attnum)
        value = now.missing if now and now.type_oid == said.type_oid else None
        if self.previous is None:
            return replace(column, missing=value)
        before = {c.attnum: c for c in self.previous.columns}.get(column.attnum)
        if before is not None:
            same = before.source_type == column.source_type
            note = before.note if before.note in (UNKNOWN_COLUMN, UNKNOWN_VALUE) else column.note
            return replace(column, missing=before.missing if same else value, note=note)
        if now is None:
            return replace(column, note=UNKNOWN_COLUMN)
        if self._came_since(now) and (value is not None or self._without_value(now)):
            return replace(column, missing=value)
        return replace(column, note=UNKNOWN_VALUE)

    def _came_since(self, now: LiveColumn) -> bool:
        """Returns whether no row of an earlier layout can have had the attribute."""
        assert self.previous is not None  # noqa: S101 - called only in that case
        unsure = any(c.attnum < 0 for c in self.previous.columns)
        if unsure or self.bracket.after.listed or now.generated:
            return now.attnum > self.earlier.newest
        return True

    def _without_value(self, now: LiveColumn) -> bool:
        """Returns whether the attribute was added without a value for older rows.

        A rewrite discards such a value, and writes it to the rows.
        """
        before, after = self.bracket.before, self.bracket.after
        kept = before is not None and before.file == after.file != 0 and now.attnum > before.began
        return kept and not now.dropped and now.missing is None
