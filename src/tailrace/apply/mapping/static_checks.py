"""Mistakes of mappings that are seen without Spark: names, keys, and what several sources of one target must
keep. What an expression is, and what it reads, Spark alone can tell: see `prepare.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ...model.change import PREFIX, Relation
from .expressions import lacking
from .table_map import PLACEHOLDERS, TableMap

_PLACEHOLDER = re.compile("@[A-Z_]+")


def plain_mistakes(wanted: TableMap, relation: Relation) -> list[str]:
    """What is wrong with a mapping for a layout of its source, in sentences.

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
    sources |= {n: n for n in _as_they_are(wanted, known)}
    names = names_of(wanted, known)
    wrong += [f"{n!r}: no column may begin with {PREFIX}" for n in names if n.startswith(PREFIX)]
    if not names and not wrong:
        wrong.append("no column is left")
    return wrong + _key(wanted, relation, set(names), sources)


def unknown_drops(wanted: TableMap, columns: Collection[str]) -> list[str]:
    """The columns to leave out that the source never had, in sentences; one that it has dropped since does
    no harm. `columns`: all that it has, or had.

    >>> unknown_drops(TableMap("s.t", "s.u", drop=("note", "x")), {"id", "note"})
    ["drop: s.t has no column 'x'"]
    """
    return [f"drop: {wanted.source} has no column {n!r}" for n in lacking(wanted.drop, columns)]


def names_of(wanted: TableMap, known: Collection[str]) -> list[str]:
    """The target's columns, for a source with these.

    >>> names_of(TableMap("s.t", "s.t", columns={"n": "name"}, drop=("x",)), ["id", "name", "x"])
    ['n', 'id']
    """
    return [*wanted.columns, *wanted.constants, *_as_they_are(wanted, known)]


def _as_they_are(wanted: TableMap, known: Collection[str]) -> list[str]:
    """The source's columns that the target has under their names."""
    renamed = {text for text in wanted.columns.values() if text in known}
    taken = {*wanted.drop, *renamed, *wanted.columns, *wanted.constants}
    return sorted(set(known) - taken)


def _key(wanted: TableMap, relation: Relation, names: set[str], sources: dict[str, str]) -> list[str]:
    """`sources`: target column -> the source's column that it is."""
    wrong = [f"key: the target has no column {n!r}" for n in lacking(wanted.key, names)]
    if not wanted.key:
        left_out = lacking(relation.key, set(sources.values()))
        return wrong + [f"the key column {n!r} is left out: name the target's key" for n in left_out]
    for name in wanted.key:
        if name in sources and sources[name] not in relation.key:
            wrong.append(
                f"key: {name!r} may be NULL; take a column of the source's key, or an expression "
                "that never is, such as coalesce(...)"
            )
    return wrong


def constants_clash(many: Sequence[TableMap]) -> list[str]:
    """What is wrong with the constants that tell the rows of one target's sources apart, in sentences.

    >>> constants_clash([TableMap("eu.t", "t"), TableMap("us.t", "t", constants={"site": "us"})])[0]
    'eu.t feeds t with others: its key needs a constant that tells its rows'
    """
    wrong = []
    first, seen = many[0], dict[tuple[tuple[str, str], ...], str]()
    for one in many:
        mine, name = one.partition, one.source
        if not mine:
            wrong.append(
                f"{name} feeds {one.target} with others: its key needs a constant that tells its rows"
            )
        if (other := seen.setdefault(tuple(sorted(mine.items())), name)) != name and mine:
            wrong.append(f"{name} and {other} feed {one.target} under the same constants: {mine}")
        if sorted(mine) != sorted(first.partition):
            wrong.append(f"{name} and {first.source} have other constants in the key of {one.target}")
    return wrong
