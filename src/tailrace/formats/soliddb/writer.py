"""Writes canonical change tables as SYS_LOG, SYS_TABLES and SYS_COLUMNS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from ...execution import over_rows
from ...model.change import NATIVE, ChangeTable
from ...model.quoting import quoted
from ...wire.soliddb_address import LENGTHS
from ..base import VendorTable
from ..shape import few_rows, neighbours
from ..spark_functions import F
from .codec import Encoding
from .log import COLUMNS, KEPT, SYS_LOG
from .options import SolidOptions
from .reader import FIELDS, RECORDS, TABLES
from .records import ENDS, OPER, OWN, SCHEMA, SEQ, Ends, Records, marks
from .tables import (
    FIRST_RELID,
    SYS_COLUMNS,
    SYS_TABLES,
    Row,
    SolidLayout,
    Spec,
    generated_rows,
    layouts,
    rows_of,
)  # fmt: skip

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OWN_ID = r"^(0|[1-9][0-9]{0,17})$"
"""A pattern of transaction ids that TRXID can hold unchanged; others get a negative number derived from
them."""
_BILLION = 1_000_000_000


def write(changes: Mapping[str, ChangeTable], options: SolidOptions) -> dict[str, DataFrame]:
    """Returns the vendor's tables. System tables and other records that were read from solidDB are written
    unchanged (the system tables are collected: they are small); rows are generated for tables that they do
    not contain. Tables without columns are not written."""
    mine = {n: ct for n, ct in changes.items() if n not in (RECORDS, TABLES, FIELDS)}
    carried = [
        rows_of(changes[n], t) if n in changes else []
        for n, t in ((TABLES, SYS_TABLES), (FIELDS, SYS_COLUMNS))
    ]
    known = layouts(carried[0], carried[1], {})
    there = {x.table for x in known}
    first = max([FIRST_RELID - 1, *(r["ID"] for r in carried[0])]) + 1
    result = generated_rows(
        [spec_of(n, ct) for n, ct in mine.items() if ct.columns and n not in there], first
    )
    made_layouts = layouts(result[0], result[1], {})
    session = next((ct.df.sparkSession for ct in changes.values()), None)
    parts, unmarked = [], []
    for name, ct in mine.items():
        own = name in there
        found = [x for x in (known if own else made_layouts) if x.table == name]
        taken, work = _taken(ct, own), records_of(ct, name, found, options, own=own)
        parts.append(over_rows(neighbours(taken, SEQ, OPER) if work.key else taken, work, SCHEMA))
        # Not from the encoded rows: Spark would encode them again.
        if found:
            unmarked.append((taken.filter(~F.col(OWN)) if own else taken).select("TRXID", SEQ, OPER))
    if unmarked:
        parts.append(_marks(reduce(_union, unmarked), options.logaddr_bytes or LENGTHS[0]))
    if RECORDS in changes:
        parts.append(changes[RECORDS].df.select(*COLUMNS))
    return {} if session is None else {
        SYS_LOG.name: reduce(_union, parts) if parts else _frame(session, SYS_LOG, []),
        SYS_TABLES.name: _frame(session, SYS_TABLES, [*carried[0], *result[0]]),
        SYS_COLUMNS.name: _frame(session, SYS_COLUMNS, [*carried[1], *result[1]]),
    }  # fmt: skip


def spec_of(name: str, ct: ChangeTable) -> Spec:
    """Returns what SYS_TABLES and SYS_COLUMNS have to contain for a change table."""
    types = {f.name: f.dataType.simpleString() for f in ct.df.schema}
    return name, tuple((c, types[c]) for c in ct.columns), tuple(ct.key)


def is_own(ct: ChangeTable) -> Column:
    """Whether a row was read from solidDB: it has its own LOGADDR."""
    name = ct.header(NATIVE + "LOGADDR")
    return F.col(name).isNotNull() if name in ct.df.columns else F.lit(False)


def keeps_id(ct: ChangeTable) -> Column:
    """Whether a row's transaction id fits into TRXID unchanged."""
    return is_own(ct) | F.coalesce(F.col(ct.header("transaction_id")).rlike(OWN_ID), F.lit(False))


def _union(a: DataFrame, b: DataFrame) -> DataFrame:
    return a.unionByName(b)


def _frame(session: SparkSession, kind: VendorTable, rows: Sequence[Row]) -> DataFrame:
    return few_rows(session, {c.name: c.type for c in kind.columns}, rows)


def records_of(
    ct: ChangeTable, name: str, found: Sequence[SolidLayout], options: SolidOptions, *, own: bool
) -> Records:
    """Returns the object that creates the records of a table's changes."""
    encoding = Encoding(tuple(x.fields for x in found), tuple(ct.columns), options.style())
    key = tuple(i for i, c in enumerate(ct.columns) if c in ct.key)
    return Records(name, tuple(found), encoding, key, options.logaddr_bytes or LENGTHS[0], own)


def _taken(ct: ChangeTable, own: bool) -> DataFrame:
    """Returns the rows of a change table in the form that `Records` accepts."""
    header = {h: F.col(quoted(ct.header(h))) for h in ct.headers}
    transaction = _or_null(header, "transaction_id", "string")
    result = _derived_id(header["change_seq"], transaction)
    result = F.when(keeps_id(ct), transaction.cast("bigint")).otherwise(result)
    kept = [_or_null(header, NATIVE + c, _type(c)).alias(f"_{c}") for c in KEPT]
    return ct.df.select(
        header["change_seq"].alias(SEQ), header["change_oper"].alias(OPER), result.alias("TRXID"),
        _or_null(header, "statement_id", "bigint").alias("STMTTRXID"),
        *([is_own(ct).alias(OWN), *kept] if own else []),
        *[F.col(quoted(c)).alias(f"_c{i}") for i, c in enumerate(ct.columns)],
    )  # fmt: skip


def _or_null(header: Mapping[str, Column], name: str, kind: str) -> Column:
    return header.get(name, F.lit(None)).cast(kind)


def _type(column: str) -> str:
    return next(c.type for c in SYS_LOG.columns if c.name == column)


def _derived_id(seq: Column, transaction: Column) -> Column:
    """Returns a TRXID for changes without a transaction id (each becomes its own transaction), or with one
    that is not a number."""
    number = F.substring(seq, -9, 9).cast("bigint")
    hashed = F.pmod(F.xxhash64(transaction), F.lit(_BILLION)) + _BILLION
    return -1 - F.when(transaction.isNull(), number).otherwise(hashed)


def _marks(changes: DataFrame, length: int) -> DataFrame:
    """Returns TRX_START and COMMIT around changes that do not have them."""
    found = over_rows(changes, Ends(length), ENDS).groupBy("TRXID")
    whole = found.agg(F.min("_first").alias("_first"), F.max("_last").alias("_last"))
    return over_rows(whole, marks, SCHEMA)
