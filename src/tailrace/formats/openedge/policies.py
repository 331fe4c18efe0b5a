"""Finds the source tables that policies and schema tables describe: names, keys, the bits of their columns,
and what each policy captures.

Policies, `_File` and `_Field` are metadata of a few rows: only they are collected in the driver. Each extract
has a copy of them. Source: spec/openedge.md §1, §2.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import FormatError
from ...wire.cd_dump import TablePolicy
from ..option_names import lists_in, no_table, refuse_columns
from .options import OpenEdgeOptions
from .tables import FIRST_USER_FIELD, spark_type

Row = Mapping[str, Any]
CURRENT, PREVIOUS, PENDING = 0, 1, 2
_LIFE = {PENDING: 1, CURRENT: 2, PREVIOUS: 3}
"""The values of `_Policy-Instance` in the order of a policy's life."""
_READ_BY = ("_Level", "_Source-File-Recid", "_Change-Tablename", "_Change-Table-Owner", "_First-User-Field")
_HINT = "keep the rows of the newest extract"


def each_once(rows: Sequence[Row]) -> list[Row]:
    """Removes duplicates of equal rows.

    >>> each_once([{"Recid": 1}, {"Recid": 2}, {"Recid": 1}])
    [{'Recid': 1}, {'Recid': 2}]
    """
    return list({repr(sorted(row.items())): row for row in rows}.values())


def newest(policies: Iterable[Row]) -> list[Row]:
    """Returns the newest row of each policy.

    Raises:
        FormatError: it is unknown which of two different rows is newer.
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
    """Groups policies by source table, or, without its recid, by change table; each group as `in_order`
    returns it.

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
    """Sorts policies of one source table, the current one first, newer ones before older ones.

    Raises:
        FormatError: several are current, and it is unknown which is the newest.
    """
    order: dict[Any, int] = {CURRENT: 0, PENDING: 1, PREVIOUS: 2}
    result = sorted(policies, key=lambda r: r["_Policy-Id"])
    result.sort(key=_changed, reverse=True)
    result.sort(key=lambda r: order.get(r.get("_Policy-Instance"), 3))
    current = [r for r in result if r.get("_Policy-Instance") == CURRENT]
    if len(current) > 1 and _changed(current[0]) == _changed(current[1]):
        both = " and ".join(str(r["_Policy-Id"]) for r in current[:2])
        raise FormatError(
            f"policies {both} are both the current one of a source table",
            where="_Cdc-Table-Policy",
            hint=f"a source table has one current policy: {_HINT}, or give _Last-Modified",
        )
    return result


def ranked(fields: Iterable[tuple[int | None, str | None]], policy: str) -> tuple[str, ...]:
    """Returns a key, from the ranks and names of a policy's fields; a field with rank None or 0 is not in the
    key.

    Raises:
        FormatError: a field has two ranks.

    >>> ranked([(2, "line"), (1, "id"), (None, "note"), (1, "id")], "p")
    ('id', 'line')
    """
    ranks: dict[str, set[int]] = {}
    for place, name in fields:
        if name:
            ranks.setdefault(name, set()).add(place or 0)
    if odd := sorted(name for name, its in ranks.items() if len(its) > 1):
        raise FormatError(
            f"{', '.join(odd)}: rows differ in _Identifying-Field",
            where=f"_Cdc-Field-Policy {policy}",
            hint=_HINT,
        )
    return tuple(name for place, name in sorted((min(its), n) for n, its in ranks.items()) if place)


def newest_dumped(policies: Sequence[TablePolicy]) -> TablePolicy:
    """Returns the policy of one change table in dumps: the current one, otherwise a pending one.

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


POLICIES, FIELDS_OF, FILES, FIELDS = "_cdc_table_policy", "_cdc_field_policy", "_file", "_field"
METADATA = (POLICIES, FIELDS_OF, FILES, FIELDS)


@dataclass(frozen=True)
class CapturedTable:
    """A source table and how it was captured.

    Attributes:
        name: `owner.table`.
        change_table: the name of its change table in the input; None: it has none (level 0).
        columns: the change table's user columns, in order.
        positions: user column -> its bit in field maps, from 1.
        counted: columns whose position is missing in `_Field`: their index among the columns is used.
        types: user column -> Spark type, if it is in `_Field`.
        extents: array column -> number of elements.
        key: identifying fields, in their order.
        tracked: policy id -> the columns it captures; an unknown policy is missing: it captures all.
        levels: policy id -> level.
        number: `_Source-Table-Number`; None: the policy ids identify its tracking rows.
        rows: the metadata rows about it, by table.
    """

    name: str
    change_table: str | None
    columns: tuple[str, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    tracked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    levels: Mapping[str, int] = field(default_factory=dict)
    number: int | None = None
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    first: int = FIRST_USER_FIELD
    counted: tuple[str, ...] = ()


def sources(
    metadata: Mapping[str, Sequence[Row]],
    change_tables: Mapping[str, Sequence[str]],
    *,
    keys: Mapping[str, Sequence[str]] | None = None,
    numbers: Mapping[str, int] | None = None,
    dumped: Sequence[TablePolicy] = (),
) -> list[CapturedTable]:
    """Returns the source tables named by policies and change tables (name -> user columns), by name.

    Args:
        metadata: rows of the existing `METADATA` tables.
        change_tables: the existing change tables, with their user columns in order.
        keys: source table -> key columns, if there are no identifying fields.
        numbers: source table -> `_Source-Table-Number`, if it is not in `_File`.
        dumped: policies of `.cd` files, for change tables without policy rows.

    Raises:
        FormatError: two policies of one source table name different change tables, or are both current; rows
            of one policy contradict each other.
    """
    metadata = {name: each_once(rows) for name, rows in metadata.items()}
    metadata[POLICIES] = newest(metadata.get(POLICIES, ()))
    found: list[CapturedTable] = []
    left = dict(change_tables)
    for policies in by_source(metadata[POLICIES]):
        result = _of_policies(policies, metadata, left)
        if result.change_table is not None:
            left.pop(result.change_table)
        found.append(result)
    for name, columns in left.items():
        found.append(_without_policy(name, columns, dumped, metadata))
    return sorted((_with_declared(s, keys or {}, numbers or {}) for s in found), key=lambda s: s.name)


def _with_declared(
    source: CapturedTable, keys: Mapping[str, Sequence[str]], numbers: Mapping[str, int]
) -> CapturedTable:
    """Returns a source table with the values that users declare, which take precedence over those found."""
    key = said_of(keys, source.name)
    number = said_of(numbers, source.name)
    if key is not None:
        refuse_columns("keys", source.name, key, source.columns)
        source = replace(source, key=tuple(key))
    return source if number is None else replace(source, number=number)


def _of_policies(
    policies: list[Row], metadata: Mapping[str, Sequence[Row]], change_tables: Mapping[str, Sequence[str]]
) -> CapturedTable:
    files, fields = metadata.get(FILES, ()), metadata.get(FIELDS, ())
    first = policies[0]
    named = {str(p["_Change-Tablename"]).lower() for p in policies if p.get("_Change-Tablename")}
    if len(named) > 1:
        raise FormatError(
            f"policies of one source table name several change tables: {', '.join(sorted(named))}",
            where=f"_Cdc-Table-Policy {first['_Policy-Id']}",
            hint="policies of one source table must have the same change table; check _Source-File-Recid",
        )
    shown = next((p for p in policies if p.get("_Change-Tablename")), first)
    change_table = _find_table(shown, change_tables)
    recid = first.get("_Source-File-Recid")
    file = next((f for f in files if recid is not None and f.get("Recid") == recid), None)
    ids = [p["_Policy-Id"] for p in policies]
    change_file = _change_file(shown, files)
    mine = [f for f in (file, change_file) if f is not None]
    rows = {
        POLICIES: policies,
        FIELDS_OF: [f for f in metadata.get(FIELDS_OF, ()) if f["_Policy-Id"] in ids],
        FILES: mine,
        FIELDS: [f for f in fields if f["_File-Recid"] in [m.get("Recid") for m in mine]],
    }
    levels = {p["_Policy-Id"]: p["_Level"] for p in policies if p.get("_Level") is not None}
    number = None if file is None else file["_File-Number"]
    start = next((p["_First-User-Field"] for p in policies if p.get("_First-User-Field")), FIRST_USER_FIELD)
    result = CapturedTable(
        _name(file, shown, change_table), change_table, levels=levels, number=number, rows=rows, first=start
    )
    if change_table is not None:
        result = _columns(result, change_tables[change_table], change_file, file)
    return _fields(result, file, ids)


def _without_policy(
    name: str, columns: Sequence[str], dumped: Sequence[TablePolicy], metadata: Mapping[str, Sequence[Row]]
) -> CapturedTable:
    """Returns the source table of a change table without policy rows: a dump has its name and identity,
    otherwise the change table's name has."""
    owner, table = _split(name)
    mine = [p for p in dumped if (p.change_table or "").lower() == table.lower()]
    mine = [p for p in mine if not owner or (p.change_owner or "").lower() == owner.lower()]
    key: tuple[str, ...] = ()
    source = (owner or "PUB", table[4:] if table.lower().startswith(("cdc_", "cdc-")) else table)
    if mine:
        policy = newest_dumped(mine)
        spelled = {c.lower(): c for c in columns}
        key = ranked(((f.identifying, spelled.get(f.name.lower())) for f in policy.fields), policy.name)
        source = (policy.owner, policy.table)
    files = {
        ((f.get("_Owner") or "PUB").lower(), f["_File-Name"].lower()): f for f in metadata.get(FILES, ())
    }
    about = files.get((source[0].lower(), source[1].lower()))
    change_file = files.get(((owner or "PUB").lower(), table.lower()))
    there = [f for f in (about, change_file) if f is not None]
    recids = [f.get("Recid") for f in there]
    rows = {FILES: there, FIELDS: [f for f in metadata.get(FIELDS, ()) if f["_File-Recid"] in recids]}
    number = None if about is None else about["_File-Number"]
    result = CapturedTable(".".join(source), name, key=key, number=number, rows=rows)
    return _columns(result, columns, change_file, about)


def _columns(
    source: CapturedTable, columns: Sequence[str], change_file: Row | None, file: Row | None
) -> CapturedTable:
    """Returns the source table with positions, types and extents of the user columns. The change table's
    columns are named as the source table's fields; only positions differ. Without the change table's rows in
    `_Field` the columns are numbered consecutively."""
    own, of_source = _by_name(source, change_file), _by_name(source, file)
    positions, types, extents = {}, {}, {}
    for n, column in enumerate(columns, 1):
        place = own.get(column.lower())
        positions[column] = n if place is None else place["_Field-Physpos"] - source.first + 1
        row = place or of_source.get(column.lower())
        if row is None:
            continue
        if kind := spark_type(row.get("_Data-Type") or "", row.get("_Decimals")):
            types[column] = kind
        if row.get("_Extent"):
            extents[column] = row["_Extent"]
    times = Counter(positions.values())
    twice = [c for c, p in positions.items() if times[p] > 1 or p < 1]
    if twice:
        raise FormatError(
            f"physical positions of {', '.join(twice)} are before the first user field, or not unique",
            where=source.change_table,
            hint="_Field must have every column of the change table, and _First-User-Field must belong to it",
        )
    counted = tuple(c for c in columns if c.lower() not in own)
    return replace(
        source, columns=tuple(columns), positions=positions, types=types, extents=extents, counted=counted
    )


def _by_name(source: CapturedTable, file: Row | None) -> dict[str, Row]:
    """Returns the rows of `_Field` of one table, by name in lower case."""
    recid = None if file is None else file.get("Recid")
    mine = (r for r in source.rows.get(FIELDS, ()) if recid is not None and r["_File-Recid"] == recid)
    return {r["_Field-Name"].lower(): r for r in mine}


def _fields(source: CapturedTable, file: Row | None, ids: Sequence[str]) -> CapturedTable:
    """Returns the source table with the columns that each policy captures, and the current policy's
    identity."""
    fields = _by_name(source, file).values()
    by_recid = {r["Recid"]: r["_Field-Name"] for r in fields if r.get("Recid") is not None}
    by_place = {r["_Field-Physpos"]: r["_Field-Name"] for r in fields}
    spelled = {c.lower(): c for c in source.columns}
    tracked: dict[str, tuple[str, ...]] = {}
    key: tuple[str, ...] = ()
    for policy in reversed(ids):  # the current policy is the last one, and determines the key
        mine = [f for f in source.rows[FIELDS_OF] if f["_Policy-Id"] == policy]
        names = [by_recid.get(f.get("_Field-Recid")) or by_place.get(f.get("_Field-Position")) for f in mine]
        columns = [spelled.get((n or "").lower()) for n in names]
        if mine and all(columns):
            some = set(columns)
            tracked[policy] = tuple(c for c in source.columns if c in some)
        places = [f.get("_Identifying-Field") for f in mine]
        key = ranked(zip(places, columns, strict=True), policy) or key
    return replace(source, tracked=tracked, key=key)


def _find_table(policy: Row, change_tables: Mapping[str, Sequence[str]]) -> str | None:
    """Returns the change table named by a policy, with or without its owner, in any letter case."""
    table = (policy.get("_Change-Tablename") or "").lower()
    owner = (policy.get("_Change-Table-Owner") or "").lower()
    bare = None
    for name in change_tables:
        its_owner, its_table = (part.lower() for part in _split(name))
        if table and its_table == table:
            if its_owner == owner:
                return name
            bare = name if not its_owner or not owner else bare
    return bare


def _change_file(policy: Row, files: Sequence[Row]) -> Row | None:
    table = (policy.get("_Change-Tablename") or "").lower()
    number = policy.get("_Object-Id")
    for file in files:
        if number is not None and file["_File-Number"] == number:
            return file
    return next((f for f in files if table and f["_File-Name"].lower() == table), None)


def _name(file: Row | None, policy: Row, change_table: str | None) -> str:
    """Returns `owner.table` of the source; without `_File` from the change table's name."""
    if file is not None:
        return ".".join(filter(None, (file.get("_Owner"), file["_File-Name"])))
    owner, table = _split(change_table or policy.get("_Change-Tablename") or policy["_Policy-Id"])
    bare = table[4:] if table.lower().startswith(("cdc_", "cdc-")) else table
    return f"{owner or policy.get('_Change-Table-Owner') or 'PUB'}.{bare}"


def _split(name: str) -> tuple[str, str]:
    """Returns owner and table of a name; the owner may be empty."""
    owner, dot, table = name.partition(".")
    return (owner, table) if dot else ("", name)


def said_of(said: Mapping[str, Any], name: str) -> Any:
    """Returns the entry of a table, under its whole name or without its owner."""
    lower = {k.lower(): v for k, v in said.items()}
    return lower.get(name.lower(), lower.get(_split(name)[1].lower()))


def notes(found: Sequence[CapturedTable], metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns notes about problems, one sentence each, with what to do."""
    said = []
    for source in found:
        policies = source.rows.get(POLICIES, ())
        if policies and all(p.get("_Policy-State") for p in policies):
            said.append(
                f"{source.name}: no policy is active; changes made without an active policy are not captured"
            )
        if source.counted and FIELDS in metadata:
            said.append(
                f"{source.name}: _Field has no rows of {_counted(source)}: bits of field maps are counted in "
                "order of its columns, which is wrong if there are gaps; give _Field of the change table"
            )
    return tuple(said)


def keyless(found: Sequence[CapturedTable], metadata: Mapping[str, Any]) -> dict[str, str]:
    """Returns the source tables with values whose key is unknown, and the reasons."""
    result = {}
    for source in found:
        if source.columns and not source.key:
            wants = any(p.get("_Identifying-Fields") for p in source.rows.get(POLICIES, ()))
            missing = " and ".join(
                n for n, key in (("_File", FILES), ("_Field", FIELDS)) if key not in metadata
            )
            unnamed = f"identifying fields without names{f' (give {missing})' if missing else ''}"
            result[source.name] = unnamed if wants else "no identifying fields"
    return result


def unknown_tables(options: OpenEdgeOptions, found: Sequence[CapturedTable]) -> list[str]:
    """Returns a note for each table that the options name and that does not exist."""
    there = [source.name for source in found]
    return [
        no_table(option, name, there)
        for option, text in (("keys", options.keys), ("numbers", options.numbers))
        for name in lists_in(text)
        if all(said_of({name: True}, table) is None for table in there)
    ]


def _counted(source: CapturedTable) -> str:
    """Returns the change table, or its columns, whose positions are counted."""
    some = f", columns {', '.join(source.counted)}" if source.counted != source.columns else ""
    return f"{source.change_table}{some}"
