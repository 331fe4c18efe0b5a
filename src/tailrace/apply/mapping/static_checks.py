"""Mistakes in mappings that are found without Spark: names, keys, and constants of several sources of a
target.

Only Spark can analyse expressions: see `prepare.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ...model.change import PREFIX, Relation
from .expressions import missing
from .table_map import PLACEHOLDERS, TableMap

_PLACEHOLDER = re.compile("@[A-Z_]+")


def plain_mistakes(wanted: TableMap, relation: Relation) -> list[str]:
    """The mistakes in a mapping for a layout of its source that need no Spark, as messages.

    >>> plain_mistakes(TableMap("s.t", "s.u", key=("x",)), Relation(1, "s", "t", "d", ()))
    ['no column is left', "key: the target has no column 'x'"]
    >>> plain_mistakes(TableMap("s.t", "s.u", constants={"site": "@SHEMA"}), Relation(1, "s", "t", "d", ()))
    ["constants: site: '@SHEMA' is none of @SCHEMA, @TABLE, @TASK"]
    """
    known = {c.name for c in relation.columns}
    wrong = [f"constants: {n!r} is in `columns` too" for n in wanted.constants if n in wanted.columns]
    wrong += [
        f"constants: {n}: {value!r} is none of {', '.join(PLACEHOLDERS)}"
        for n, value in wanted.constants.items()
        if _PLACEHOLDER.fullmatch(value) or value.upper() in PLACEHOLDERS
    ]
    sources = {n: text for n, text in wanted.columns.items() if text in known}
    sources |= {n: n for n in _unmapped(wanted, known)}
    names = names_of(wanted, known)
    wrong += [f"{n!r}: no column may begin with {PREFIX}" for n in names if n.startswith(PREFIX)]
    if not names and not wrong:
        wrong.append("no column is left")
    return wrong + _key(wanted, relation, set(names), sources)


def unknown_drops(wanted: TableMap, columns: Collection[str]) -> list[str]:
    """The columns under `drop` that the source never had, as messages. A column that it dropped is accepted.

    `columns`: all columns that it has, or had.

    >>> unknown_drops(TableMap("s.t", "s.u", drop=("note", "x")), {"id", "note"})
    ["drop: s.t has no column 'x'"]
    """
    return [f"drop: {wanted.source} has no column {n!r}" for n in missing(wanted.drop, columns)]


def names_of(wanted: TableMap, known: Collection[str]) -> list[str]:
    """The columns of the target, for a source with the columns `known`.

    >>> names_of(TableMap("s.t", "s.t", columns={"n": "name"}, drop=("x",)), ["id", "name", "x"])
    ['n', 'id']
    """
    return [*wanted.columns, *wanted.constants, *_unmapped(wanted, known)]


def _unmapped(wanted: TableMap, known: Collection[str]) -> list[str]:
    """The columns of the source that keep their names in the target."""
    renamed = {text for text in wanted.columns.values() if text in known}
    taken = {*wanted.drop, *renamed, *wanted.columns, *wanted.constants}
    return sorted(set(known) - taken)


def _key(wanted: TableMap, relation: Relation, names: set[str], sources: dict[str, str]) -> list[str]:
    """The mistakes in the key. `sources`: target column -> the column of the source that it is a copy of."""
    wrong = [f"key: the target has no column {n!r}" for n in missing(wanted.key, names)]
    if not wanted.key:
        left_out = missing(relation.key, set(sources.values()))
        return wrong + [f"the key column {n!r} is left out: name the target's key" for n in left_out]
    for name in wanted.key:
        if name in sources and sources[name] not in relation.key:
            wrong.append(
                f"key: {name!r} may be NULL; use a column of the source's key, or an expression "
                "that is never NULL, such as coalesce(...)"
            )
    return wrong


def constants_clash(maps: Sequence[TableMap]) -> list[str]:
    """The mistakes in the constants that distinguish the rows of one target's sources, as messages.

    >>> constants_clash([TableMap("eu.t", "t"), TableMap("us.t", "t", constants={"site": "us"})])[0]
    'eu.t shares t with other sources: its key needs a constant for its rows'
    """
    wrong = []
    first, seen = maps[0], dict[tuple[tuple[str, str], ...], str]()
    for one in maps:
        mine, name = one.partition, one.source
        if not mine:
            wrong.append(
                f"{name} shares {one.target} with other sources: its key needs a constant for its rows"
            )
        if (other := seen.setdefault(tuple(sorted(mine.items())), name)) != name and mine:
            wrong.append(f"{name} and {other} feed {one.target} with the same constants: {mine}")
        if sorted(mine) != sorted(first.partition):
            wrong.append(f"{name} and {first.source} have different constants in the key of {one.target}")
    return wrong
