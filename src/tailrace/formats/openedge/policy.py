"""Determines which source table a change table belongs to, the bits of its columns, and what its policies
captured.

Policies, `_File` and `_Field` are metadata of a few rows: they are collected, nothing else is. What they say
is kept in the canonical table's schema (`Kept`), so that the vendor's tables can be written again from it.
Source: spec/openedge.md §1, §2.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import FormatError
from ...wire.cd_dump import TablePolicy
from ..given import refuse_columns
from . import policy_rows
from .policy_rows import by_source, each_once, newest, ranked
from .tables import FIRST_USER_FIELD, spark_type

Row = Mapping[str, Any]
POLICIES, FIELDS_OF, FILES, FIELDS = "_cdc_table_policy", "_cdc_field_policy", "_file", "_field"
METADATA = (POLICIES, FIELDS_OF, FILES, FIELDS)


@dataclass(frozen=True)
class CapturedTable:
    """One source table and everything known about how it was captured.

    Attributes:
        name: `owner.table`.
        change_table: its change table's name among the tables given; None: there is none (level 0).
        columns: the change table's user columns, in order.
        positions: user column -> its bit in field maps, from 1.
        counted: those whose position `_Field` does not say: it is their place among the columns.
        types: user column -> Spark type, where `_Field` says it.
        extents: array column -> number of elements.
        key: identifying fields, in their order.
        tracked: policy id -> the columns it captures; not there when it is not known: all.
        levels: policy id -> level.
        number: `_Source-Table-Number`; None: the policy ids have to tell its tracking rows.
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
    """The source tables named by policies and change tables (name -> user columns), by name.

    Args:
        metadata: rows of `METADATA` tables, as far as they are there.
        change_tables: the change tables there are, with their user columns in order.
        keys: source table -> key columns, where no identifying fields say them.
        numbers: source table -> `_Source-Table-Number`, where `_File` does not say it.
        dumped: policies of `.cd` files, for change tables of which no policy row is there.

    Raises:
        FormatError: two policies of one source table name different change tables, or are both the current
            one; rows of one policy contradict each other.
    """
    metadata = {name: each_once(rows) for name, rows in metadata.items()}
    metadata[POLICIES] = newest(metadata.get(POLICIES, ()))
    found: list[CapturedTable] = []
    left = dict(change_tables)
    for policies in by_source(metadata[POLICIES]):
        made = _of_policies(policies, metadata, left)
        if made.change_table is not None:
            left.pop(made.change_table)
        found.append(made)
    for name, columns in left.items():
        found.append(_without_policy(name, columns, dumped, metadata))
    return sorted((_said(s, keys or {}, numbers or {}) for s in found), key=lambda s: s.name)


def _said(
    source: CapturedTable, keys: Mapping[str, Sequence[str]], numbers: Mapping[str, int]
) -> CapturedTable:
    """What users declare takes precedence over what is found."""
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
            hint="policies of one source table share one change table; look at _Source-File-Recid",
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
    made = CapturedTable(
        _name(file, shown, change_table), change_table, levels=levels, number=number, rows=rows, first=start
    )
    if change_table is not None:
        made = _columns(made, change_tables[change_table], change_file, file)
    return _fields(made, file, ids)


def _without_policy(
    name: str, columns: Sequence[str], dumped: Sequence[TablePolicy], metadata: Mapping[str, Sequence[Row]]
) -> CapturedTable:
    """A change table without policy rows: a dump names its source table and identity, otherwise its own name
    does."""
    owner, table = _split(name)
    mine = [p for p in dumped if (p.change_table or "").lower() == table.lower()]
    mine = [p for p in mine if not owner or (p.change_owner or "").lower() == owner.lower()]
    key: tuple[str, ...] = ()
    source = (owner or "PUB", table[4:] if table.lower().startswith(("cdc_", "cdc-")) else table)
    if mine:
        policy = policy_rows.dumped(mine)
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
    made = CapturedTable(".".join(source), name, key=key, number=number, rows=rows)
    return _columns(made, columns, change_file, about)


def _columns(
    source: CapturedTable, columns: Sequence[str], change_file: Row | None, file: Row | None
) -> CapturedTable:
    """Positions, types and extents of the user columns, which are named as the source table's fields: only
    positions differ from its. Without the change table's rows in `_Field` they are numbered consecutively."""
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
    """The rows of `_Field` about one of its tables, by name in lower case."""
    recid = None if file is None else file.get("Recid")
    mine = (r for r in source.rows.get(FIELDS, ()) if recid is not None and r["_File-Recid"] == recid)
    return {r["_Field-Name"].lower(): r for r in mine}


def _fields(source: CapturedTable, file: Row | None, ids: Sequence[str]) -> CapturedTable:
    """The field policies: the columns that each policy captures, and the current one's identity."""
    fields = _by_name(source, file).values()
    by_recid = {r["Recid"]: r["_Field-Name"] for r in fields if r.get("Recid") is not None}
    by_place = {r["_Field-Physpos"]: r["_Field-Name"] for r in fields}
    spelled = {c.lower(): c for c in source.columns}
    tracked: dict[str, tuple[str, ...]] = {}
    key: tuple[str, ...] = ()
    for policy in reversed(ids):  # the current policy comes last, and determines the key
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
    """The change table named by a policy, with or without its owner, in any letter case."""
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
    """`owner.table` of the source; without `_File` from the change table's name."""
    if file is not None:
        return ".".join(filter(None, (file.get("_Owner"), file["_File-Name"])))
    owner, table = _split(change_table or policy.get("_Change-Tablename") or policy["_Policy-Id"])
    bare = table[4:] if table.lower().startswith(("cdc_", "cdc-")) else table
    return f"{owner or policy.get('_Change-Table-Owner') or 'PUB'}.{bare}"


def _split(name: str) -> tuple[str, str]:
    """Owner and table of a name; the owner is empty if there is none."""
    owner, dot, table = name.partition(".")
    return (owner, table) if dot else ("", name)


def said_of(said: Mapping[str, Any], name: str) -> Any:
    """The entry of a table, under its whole name or without its owner."""
    lower = {k.lower(): v for k, v in said.items()}
    return lower.get(name.lower(), lower.get(_split(name)[1].lower()))
