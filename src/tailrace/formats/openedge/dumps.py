"""Creates `.cd` dumps of the policies in `_Cdc-Table-Policy` and `_Cdc-Field-Policy`.

A dump contains names of tables and fields where the policy tables have their recids, so `_File` and `_Field`
are required. Like OpenEdge's own dump, it has one policy per source table, without the policies' ids.
Source: spec/openedge.md §6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import FormatError
from ...wire.cd_dump import Dump, FieldPolicy, TablePolicy
from ..base import Tables
from .policies import (
    FIELDS,
    FIELDS_OF,
    FILES,
    METADATA,
    PENDING,
    POLICIES,
    by_source,
    each_once,
    newest,
    ranked,
)
from .reader import metadata_rows


def dump_of(tables: Tables, database: str) -> Dump:
    """Returns the current policies of the tables (a pending one if there is no current one), as a dump.

    Raises:
        FormatError: policies, `_File` or `_Field` are missing, or a table or field has no name.
    """
    rows = metadata_rows(tables)
    if missing := [n for n in METADATA if n not in rows]:
        raise FormatError(
            f"no {', '.join(missing)}", where="policy dump", hint="a dump has names, policies have recids"
        )
    return Dump(tuple(policies_of(rows)), database=database)


def policies_of(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[TablePolicy]:
    """Returns the policies to dump, from metadata rows, in order of their source tables: those that `read`
    uses.

    Raises:
        FormatError: a table or field of a policy has no name; it is unknown which row is the newest.
    """
    rows = {name: each_once(some) for name, some in rows.items()}
    files = {f["Recid"]: f for f in rows[FILES]}
    result = []
    for policy, *_ in by_source(newest(rows[POLICIES])):
        recid = policy["_Source-File-Recid"]
        if recid not in files:
            raise FormatError(f"no _File row {recid}", where=f"policy {policy['_Policy-Name']}")
        result.append(_policy(policy, files[recid], _fields(policy, recid, rows)))
    return sorted(result, key=lambda p: (p.owner, p.table))


def _policy(row: Mapping[str, Any], file: Mapping[str, Any], fields: tuple[FieldPolicy, ...]) -> TablePolicy:
    def text(name: str) -> str | None:
        return None if row.get(name) is None else str(row[name])

    instance = row["_Policy-Instance"]
    return TablePolicy(
        name=row["_Policy-Name"],
        description=row.get("_Policy-Desc"),
        state=row["_Policy-State"],
        instance=PENDING if instance == 1 else instance,
        table=file["_File-Name"],
        owner=file.get("_Owner") or "PUB",
        area=text("_Area-Ianum"),
        index_area=text("_Index-Area-Ianum"),
        identifying=bool(row.get("_Identifying-Fields")),
        level=row["_Level"],
        change_table=row.get("_Change-Tablename"),
        change_owner=row.get("_Change-Table-Owner") or "PUB",
        encrypt=row.get("_Encrypt-Policy"),
        fields=fields,
    )


def _fields(
    policy: Mapping[str, Any], file: int, rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[FieldPolicy, ...]:
    mine = [f for f in rows[FIELDS] if f["_File-Recid"] == file]
    names = {f["Recid"]: f["_Field-Name"] for f in mine}
    places = {f["_Field-Physpos"]: f["_Field-Name"] for f in mine}
    key: list[tuple[int | None, str]] = []
    for field in rows[FIELDS_OF]:
        if field["_Policy-Id"] != policy["_Policy-Id"]:
            continue
        name = names.get(field.get("_Field-Recid")) or places.get(field.get("_Field-Position"))
        if name is None:
            raise FormatError(
                f"no _Field row for position {field.get('_Field-Position')}",
                where=f"policy {policy['_Policy-Name']}",
            )
        key.append((field.get("_Identifying-Field"), name))
    ranked(key, policy["_Policy-Name"])  # refuses a field with two ranks
    return tuple(FieldPolicy(name, rank) for name, rank in {name: rank for rank, name in key}.items())
