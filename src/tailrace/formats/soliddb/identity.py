"""Which columns of a table's layouts are the same column, though others had its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Layouts = Mapping[tuple[int, bytes], Sequence[Mapping[str, Any]]]
"""Rows of SYS_COLUMNS by table id and the LOGADDR from which they hold."""


def column_id(relid: int, number: int) -> int:
    """SYS_COLUMNS.ID of a generated row, of the column's number in its table."""
    return (relid * 1000 + number) % 2**31


def current(layouts: Layouts) -> dict[tuple[int, bytes], set[str]]:
    """The columns of each layout that are the last ones of their names: not those that were dropped before
    another column got the name. Such a one has another id, or there is a layout in between without the name.
    A table made again has other ids throughout; its columns are those of before.
    """
    numbered = _numbered(layouts)
    found: dict[tuple[int, bytes], set[str]] = {}
    names: dict[int, set[str]] = {}
    after: dict[int, dict[str, Any]] = {}
    last: dict[int, set[str]] = {}
    newest: dict[tuple[int, str], Any] = {}
    for (relid, start), rows in sorted(layouts.items(), reverse=True):
        ids = {r["COLUMN_NAME"]: r["ID"] for r in rows}
        known, later = names.setdefault(relid, set()), after.get(relid, {})
        stay = last.get(relid, set()).intersection(ids)
        if relid in numbered:
            stay -= _others(ids, later)
            # One that was called otherwise in between has its id still.
            stay |= {n for n, one in ids.items() if one is not None and one == newest.get((relid, n))}
        found[relid, start] = last[relid] = stay | (ids.keys() - known)
        known.update(ids)
        newest = {**{(relid, n): one for n, one in ids.items()}, **newest}
        after[relid] = ids
    return found


def _others(ids: Mapping[str, Any], later: Mapping[str, Any]) -> set[str]:
    """The names whose column is another one in the next layout. If no column has its id there, ids tell
    nothing: they number the rows."""
    both = {n for n in ids.keys() & later.keys() if None not in (ids[n], later[n])}
    other = {n for n in both if ids[n] != later[n]}
    return other if other != both else set()


def _numbered(layouts: Layouts) -> set[int]:
    """The tables whose columns have ids. Those that say no more than the place came of an `export-log` that
    gave a column another one when a column in front of it was dropped."""
    return {
        relid
        for (relid, _), rows in layouts.items()
        if any(r["ID"] != column_id(relid, r["COLUMN_NUMBER"]) for r in rows)
    }
