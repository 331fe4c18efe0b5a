"""SYS_LOG as declared by solidDB, checks of single records, and transactions: the steps that reading shares.
Source: spec/soliddb.md §1-§3, §7."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE, ChangeTable
from ...wire.soliddb_address import DDL as DDL_KINDS
from ...wire.soliddb_address import LENGTHS, ddl_body
from ...wire.soliddb_address import TRUNCATE as TRUNCATE_TABLE
from ..arrow_functions import AnyColumn, AnyRows, Functions
from ..base import VendorColumn, VendorTable
from ..shape import also
from .place import has_no_sequence, rank_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EMPTY, REC_INSERT, REC_UPDATE, REC_DELETE, REC_BEFORE, SQL, START, COMMIT, DDL = 0, 1, 3, 4, 5, 6, 7, 12, 13
RECNAMES = {
    EMPTY: "DBE_LOGREADER_LOG_REC_EMPTY", REC_INSERT: "DBE_LOGREADER_LOG_REC_INSERT",
    REC_UPDATE: "DBE_LOGREADER_LOG_REC_UPDATE", REC_DELETE: "DBE_LOGREADER_LOG_REC_DELETE_FULL",
    REC_BEFORE: "DBE_LOGREADER_LOG_REC_UPDATE_BEFOREIMAGE", SQL: "DBE_LOGREADER_LOG_REC_SQL",
    START: "DBE_LOGREADER_LOG_REC_TRX_START", COMMIT: "DBE_LOGREADER_LOG_REC_COMMIT",
    DDL: "DBE_LOGREADER_LOG_REC_DDL",
}  # fmt: skip
"""RECID -> RECNAME: the whole published list. Other numbers are carried unchanged."""
ROWS = (REC_INSERT, REC_UPDATE, REC_DELETE, REC_BEFORE)
OPERS = {REC_INSERT: INSERT, REC_UPDATE: UPDATE, REC_DELETE: DELETE, REC_BEFORE: BEFORE, DDL: TRUNCATE}
"""RECID -> change_oper, for row records and (for DDL) truncates."""
DATA, SHUTDOWN, CAPTURE_OFF = 0x01, 0x02, 0x40
"""Bits of FLAGS; no bit: NOP."""

SYS_LOG = VendorTable(
    "SYS_LOG",
    "one row per log record",
    (
        VendorColumn("RECID", "int", "kind of record"),
        VendorColumn("RECNAME", "string", "its name", optional=True),
        VendorColumn("TRXID", "bigint", "transaction_id", optional=True),
        VendorColumn("STMTTRXID", "bigint", "statement_id", optional=True),
        VendorColumn("RELID", "int", "SYS_TABLES.ID"),
        VendorColumn("FLAGS", "int", "bits: 0 DATA, 1 SHUTDOWN, 6 CAPTURE_OFF; none: NOP", optional=True),
        VendorColumn("LOGADDR", "binary", "change_seq and stream_position"),
        VendorColumn("DATA", "binary", "row image, or LOGRECID and INFO of DDL"),
        VendorColumn("TEXTDATA", "string", "unused: always NULL", optional=True),
    ),
)
COLUMNS = [c.name for c in SYS_LOG.columns]
SEQ, RANK = "_seq", "_rank"


def checked(f: Functions, log: AnyRows, length: int) -> AnyRows:
    """Records with their rank (`RANK`), and the reasons of bad ones. Rows without any data (NOP, SHUTDOWN)
    are left out: they have no LOGADDR, and describe no change."""
    flags, address, recid = f.col("FLAGS"), f.col("LOGADDR"), f.col("RECID")
    nothing = address.isNull() & f.col("DATA").isNull() & f.col("RELID").isNull() & f.col("TRXID").isNull()
    idle = nothing & (flags.bitwiseAND(DATA) == 0) & f.coalesce(recid, f.lit(0)).isin(EMPTY)
    log = log.filter(~f.coalesce(idle, f.lit(False))).withColumn(RANK, rank_of(f, address))
    size = f.octet_length(address)
    known = size.isin(*LENGTHS)
    return also(
        log,
        (recid.isNull(), "no RECID"),
        (address.isNull(), "no LOGADDR"),
        (~known, f.concat(f.lit("LOGADDR has "), size, f.lit(" bytes, not 20 or 28"))),
        (
            known & (size != length),
            f.concat(f.lit("LOGADDR has "), size, f.lit(f" bytes, others have {length}")),
        ),
        (known & has_no_sequence(f, address), "LOGADDR does not fit into 35 digits"),
        (
            f.col("RECNAME") != recname(f, recid),
            f.concat(f.lit("RECNAME "), "RECNAME", f.lit(" is not that of RECID "), "RECID"),
        ),
        (
            recid.isin(*ROWS) & (f.col("DATA").isNull() | (flags.bitwiseAND(DATA) == 0)),
            "a row record without DATA",
        ),
        ((flags == 0) & address.isNotNull(), "a NOP record with values"),
        f=f,
    )


def address_length(log: DataFrame) -> int:
    """The number of bytes of LOGADDR in this log: 20 if any record has that many (which ends the search)."""
    from pyspark.sql import functions as F

    return LENGTHS[0] if log.filter(F.octet_length("LOGADDR") == LENGTHS[0]).take(1) else LENGTHS[1]


def recname(f: Functions, recid: AnyColumn) -> AnyColumn:
    """The name of a record kind."""
    return f.element_at(f.create_map(*[f.lit(x) for pair in RECNAMES.items() for x in pair]), recid)


def is_truncate(f: Functions) -> AnyColumn:
    """Whether a record is the DDL record of TRUNCATE TABLE."""
    kinds = [TRUNCATE_TABLE.to_bytes(4, order) for order in ("big", "little")]
    return f.coalesce((f.col("RECID") == DDL) & f.substring("DATA", 1, 4).isin(*kinds), f.lit(False))


def truncated_name(f: Functions) -> AnyColumn:
    """The table name in a truncate's DATA, without quotes."""
    text = f.substring("DATA", 5, 2**31 - 1).cast("string")
    plain = f.replace(f.regexp_replace(text, "\\x00+$", ""), f.lit("\0"), f.lit("."))
    return f.replace(plain, f.lit('"'), f.lit(""))


def truncate_body(table: str) -> bytes:
    """DATA of a truncate record."""
    return ddl_body(TRUNCATE_TABLE, table)


def statements(records: ChangeTable) -> DataFrame:
    """The DDL and SQL records of `_SYSTEM.SYS_LOG` (spec/soliddb.md §5.2): place, `LOGRECID`, what it did
    (`operation`), the object's `name`, and the `sql` text of SQL records."""
    from pyspark.sql import functions as F

    head, text = F.hex(F.substring("DATA", 1, 4)), F.expr("substring(DATA, 5)").cast("string")
    swapped = F.concat(*[F.substring(head, n, 2) for n in (7, 5, 3, 1)])
    first, last = (F.conv(x, 16, 10).cast("bigint") for x in (head, swapped))
    ddl = F.col("RECID") == DDL
    known = F.create_map(*[F.lit(x) for pair in DDL_KINDS.items() for x in pair])
    kind = F.when(~first.isin(*DDL_KINDS) & last.isin(*DDL_KINDS), last).otherwise(first)
    plain = F.regexp_replace(F.when(ddl, text).otherwise(F.col("DATA").cast("string")), "\\x00+$", "")
    return (
        records.df.filter(F.col("RECID").isin(DDL, SQL))
        .withColumns({"LOGRECID": F.when(ddl, kind), "_text": F.replace(plain, F.lit("\0"), F.lit("."))})
        .select(
            "LOGADDR", "TRXID", "RELID", "RECID", "LOGRECID",
            F.element_at(known, F.col("LOGRECID")).alias("operation"),
            F.when(ddl, F.col("_text")).alias("name"), F.when(~ddl, F.col("_text")).alias("sql"),
        )
    )  # fmt: skip
