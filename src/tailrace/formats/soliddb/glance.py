"""The first rows of solidDB's log extracts, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import FormatError
from ...wire.soliddb_address import sequence_of
from ..first_rows import Glance, TableSample
from ..glances import plain_rows
from ..samples import samples as taken
from .log import OPERS, ROWS, SYS_LOG
from .options import SolidOptions
from .reading import kind_of
from .tables import SYS_COLUMNS, SYS_TABLES, layouts, union


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
        relids = {x.relid for x in mine}
        records = [r for r in rows.get(SYS_LOG.name, []) if r["RECID"] in ROWS and r["RELID"] in relids]
        made.append(Glance(name, list(mine[-1].key), dict(union(mine)), [_change(r) for r in records]))
    return made


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
