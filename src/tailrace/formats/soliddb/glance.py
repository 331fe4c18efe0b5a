"""The first rows of solidDB's log extracts, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import FormatError
from ...wire.soliddb_address import TRUNCATE, ddl, sequence_of
from ..first_rows import Glance, TableSample
from ..glances import plain_rows
from ..samples import samples as taken
from .log import DDL, OPERS, ROWS, SYS_LOG
from .options import SolidOptions
from .reading import kind_of
from .tables import SYS_COLUMNS, SYS_TABLES, SolidLayout, layouts, union


def samples(path: str, options: SolidOptions) -> dict[str, TableSample]:
    """The tables under a path, the system tables completely."""
    found = taken(path)
    whole = [n.lower() for n, s in found.items() if kind_of(s.columns) in (SYS_TABLES, SYS_COLUMNS)]
    return {**found, **{n: s for n, s in taken(path, whole=whole).items() if n.lower() in whole}}


def glance(tables: Mapping[str, TableSample], options: SolidOptions, path: str) -> list[Glance]:
    """The first records, by table; a key change is shown as the delete and the insert in the log."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for sample in tables.values():
        if (kind := kind_of(sample.columns)) is not None:
            rows.setdefault(kind.name, []).extend(plain_rows(sample, kind, binary=options.binary))
    known = layouts(rows.get(SYS_TABLES.name, []), rows.get(SYS_COLUMNS.name, []), options.key_columns())
    made = []
    for name in dict.fromkeys(x.table for x in known if options.wants(x.table)):
        mine = [x for x in known if x.table == name]
        records = [r for r in rows.get(SYS_LOG.name, []) if _is_of(r, mine, known)]
        made.append(Glance(name, list(mine[-1].key), dict(union(mine)), [_change(r) for r in records]))
    return made


def _is_of(row: Mapping[str, Any], mine: Sequence[SolidLayout], every: Sequence[SolidLayout]) -> bool:
    """Whether a record is a table's: a row's, or that of a TRUNCATE (see `rules`)."""
    if row["RELID"] in {x.relid for x in mine}:
        return row["RECID"] in ROWS or _truncated(row) is not None
    if row["RELID"] in {x.relid for x in every} or (name := _truncated(row)) is None:
        return False
    taken = {n for x in every if x.table != mine[0].table for n in x.names}
    return name in {n for x in mine for n in x.names} - taken


def _truncated(row: Mapping[str, Any]) -> str | None:
    """The name of the table that a TRUNCATE's record tells; None: it is none."""
    if row["RECID"] != DDL:
        return None
    try:
        kind, name = ddl(row["DATA"] or b"")
    except FormatError:
        return None
    return name.replace('"', "") if kind == TRUNCATE else None


def _change(row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        seq = sequence_of(row["LOGADDR"] or b"")
    except FormatError:
        seq = None
    transaction = None if row["TRXID"] is None else str(row["TRXID"])
    return {
        "change_seq": seq, "change_oper": OPERS[row["RECID"]], "transaction_id": transaction,
        "statement_id": row["STMTTRXID"],
    }  # fmt: skip
