"""Rows of policies, `_File` and `_Field` that are there several times: each extract brings its own copy.

Source: spec/openedge.md §1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import FormatError
from ...wire.cd_dump import TablePolicy

Row = Mapping[str, Any]
CURRENT, PREVIOUS, PENDING = 0, 1, 2
_LIFE = {PENDING: 1, CURRENT: 2, PREVIOUS: 3}
"""`_Policy-Instance` in the order in which a policy becomes these."""
_READ_BY = ("_Level", "_Source-File-Recid", "_Change-Tablename", "_Change-Table-Owner", "_First-User-Field")
_HINT = "keep the rows of the newest extract"


def each_once(rows: Sequence[Row]) -> list[Row]:
    """Equal rows once.

    >>> each_once([{"Recid": 1}, {"Recid": 2}, {"Recid": 1}])
    [{'Recid': 1}, {'Recid': 2}]
    """
    return list({repr(sorted(row.items())): row for row in rows}.values())


def newest(policies: Iterable[Row]) -> list[Row]:
    """The newest row of each policy.

    Raises:
        FormatError: which is newer is not told, and it matters.
    """
    found: dict[Any, list[Row]] = {}
    for row in policies:
        found.setdefault(row["_Policy-Id"], []).append(row)
    return [_newest(rows) for rows in found.values()]


def _newest(rows: list[Row]) -> Row:
    age = max(map(_age, rows))
    last = [row for row in rows if _age(row) == age]
    odd = [n for n in _READ_BY if len({row.get(n) for row in last}) > 1]
    if odd:
        raise FormatError(
            f"rows of one policy differ in {', '.join(odd)}, and none is newer by _Last-Modified",
            where=f"_Cdc-Table-Policy {last[0]['_Policy-Id']}",
            hint=_HINT,
        )
    return last[-1]


def by_source(policies: Iterable[Row]) -> list[list[Row]]:
    """Policies of one source table together, as `in_order` has them; without its recid, those of one change
    table.

    Raises:
        FormatError: as `in_order`.
    """
    groups: dict[Any, list[Row]] = {}
    for row in policies:
        recid, table = row.get("_Source-File-Recid"), row.get("_Change-Tablename")
        about = recid if recid is not None else (table or row["_Policy-Id"]).lower()
        groups.setdefault(about, []).append(row)
    return [in_order(group) for group in groups.values()]


def in_order(policies: Iterable[Row]) -> list[Row]:
    """Policies of one source table, the current one first, newer ones before older ones.

    Raises:
        FormatError: several are the current one, and which is the newest is not told.
    """
    order: dict[Any, int] = {CURRENT: 0, PENDING: 1, PREVIOUS: 2}
    made = sorted(policies, key=lambda r: r["_Policy-Id"])
    made.sort(key=_changed, reverse=True)
    made.sort(key=lambda r: order.get(r.get("_Policy-Instance"), 3))
    current = [r for r in made if r.get("_Policy-Instance") == CURRENT]
    if len(current) > 1 and _changed(current[0]) == _changed(current[1]):
        both = " and ".join(str(r["_Policy-Id"]) for r in current[:2])
        raise FormatError(
            f"policies {both} are both the current one of a source table",
            where="_Cdc-Table-Policy",
            hint=f"a source table has one current policy: {_HINT}, or give _Last-Modified",
        )
    return made


def ranked(fields: Iterable[tuple[int | None, str | None]], policy: str) -> tuple[str, ...]:
    """A key, from the places and names of a policy's fields; None or 0: it is not in the key.

    Raises:
        FormatError: a field has two places.

    >>> ranked([(2, "line"), (1, "id"), (None, "note"), (1, "id")], "p")
    ('id', 'line')
    """
    places: dict[str, set[int]] = {}
    for place, name in fields:
        if name:
            places.setdefault(name, set()).add(place or 0)
    if odd := sorted(name for name, its in places.items() if len(its) > 1):
        raise FormatError(
            f"{', '.join(odd)}: rows differ in _Identifying-Field",
            where=f"_Cdc-Field-Policy {policy}",
            hint=_HINT,
        )
    return tuple(name for place, name in sorted((min(its), n) for n, its in places.items()) if place)


def dumped(policies: Sequence[TablePolicy]) -> TablePolicy:
    """The policy of one change table in dumps: the current one, else a pending one.

    Raises:
        FormatError: dumps have several, with other tables or fields.
    """
    least = min(p.instance for p in policies)
    first, *others = (p for p in policies if p.instance == least)
    said = (first.owner, first.table, first.fields)
    if any((p.owner, p.table, p.fields) != said for p in others):
        raise FormatError(
            f"dumps have several policies of {first.change_table}, with other tables or fields",
            where=f"policy {first.name}",
            hint="keep the newest .cd file, or give _Cdc-Table-Policy and _Cdc-Field-Policy",
        )
    return first


def _changed(row: Row) -> str:
    return str(row.get("_Last-Modified") or "")


def _age(row: Row) -> tuple[str, int]:
    return _changed(row), _LIFE.get(row.get("_Policy-Instance"), 0)  # type: ignore[arg-type]
