"""The first rows of solidDB's log extracts, without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    found = taken(path, options)
    whole = [n.lower() for n, s in found.items() if kind_of(s.columns) in (SYS_TABLES, SYS_COLUMNS)]
    whole_ones = taken(path, options, whole=whole)
    return {**found, **{n: s for n, s in whole_ones.items() if n.lower() in whole}}


def glance(tables: Mapping[str, TableSample], options: SolidOptions, path: str) -> list[Glance]:
    """The first records, by table; a key change is shown as the delete and the insert in the log."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for sample in tables.values():
        if (kind := kind_of(sample.columns)) is not None:
            rows.setdefault(kind.name, []).extend(plain_rows(sample, kind, binary=options.binary))
    system = [rows.get(kind.name, []) for kind in (SYS_TABLES, SYS_COLUMNS)]
    known = layouts(system[0], system[1], options.key_columns(), options.names)
    records = _by_table(rows.get(SYS_LOG.name, []), known)
    made = []
    for name in dict.fromkeys(x.table for x in known if options.wants(x.table)):
        mine = [x for x in known if x.table == name]
        changes = [_change(r) for r in records.get(name, [])]
        made.append(Glance(name, list(mine[-1].key), dict(union(mine)), changes))
    return made


def _by_table(
    records: Iterable[dict[str, Any]], known: Sequence[SolidLayout]
) -> Mapping[str, list[dict[str, Any]]]:
    """The records of rows and of TRUNCATE by table: by RELID; a TRUNCATE's whose RELID no table has by a name
    that one table alone has (see `rules`)."""
    relids, names = defaultdict[int, set[str]](set), defaultdict[str, set[str]](set)
    for x in known:
        relids[x.relid].add(x.table)
        for name in x.names:
            names[name].add(x.table)
    found = defaultdict[str, list[dict[str, Any]]](list)
    for row in records:
        truncated, tables = _truncated(row), set[str]()
        if row["RECID"] in ROWS or truncated is not None:
            tables = relids.get(row["RELID"], set())
        if truncated is not None and row["RELID"] not in relids and len(names[truncated]) == 1:
            tables = names[truncated]
        for table in tables:
            found[table].append(row)
    return found


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
