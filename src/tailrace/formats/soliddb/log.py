"""SYS_LOG as declared by solidDB, checks of single records, and transactions: the steps that reading shares.
Source: spec/soliddb.md §1-§3, §7."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE, ChangeTable
from ...wire.soliddb_address import DDL as DDL_KINDS
from ...wire.soliddb_address import LENGTHS, ddl_body
from ...wire.soliddb_address import TRUNCATE as TRUNCATE_TABLE
from ..base import VendorColumn, VendorTable
from ..shape import also
from .place import has_no_sequence, rank_of, sequence_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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


def checked(log: DataFrame, length: int) -> DataFrame:
    """Records with their change sequence (`SEQ`) and rank (`RANK`), and the reasons of bad ones. Rows
    without any data (NOP, SHUTDOWN) are left out: they have no LOGADDR, and describe no change."""
    from pyspark.sql import functions as F

    flags, address = F.col("FLAGS"), F.col("LOGADDR")
    nothing = F.coalesce(*[F.col(c).cast("string") for c in ("LOGADDR", "DATA", "RELID", "TRXID")]).isNull()
    idle = nothing & ((flags.bitwiseAND(DATA) == 0) & F.coalesce(F.col("RECID"), F.lit(0)).isin(0))
    log = log.filter(~F.coalesce(idle, F.lit(False)))
    log = log.withColumns({SEQ: sequence_of(address), RANK: rank_of(address)})
    size = F.octet_length(address)
    name = F.element_at(F.create_map(*[F.lit(x) for pair in RECNAMES.items() for x in pair]), F.col("RECID"))
    image = F.col("RECID").isin(*ROWS)
    other = F.concat(F.lit("LOGADDR has "), size, F.lit(f" bytes, others have {length}"))
    return also(
        log,
        (F.col("RECID").isNull(), "no RECID"),
        (address.isNull(), "no LOGADDR"),
        (~size.isin(*LENGTHS), F.concat(F.lit("LOGADDR has "), size, F.lit(" bytes, not 20 or 28"))),
        (size.isin(*LENGTHS) & (size != length), other),
        (size.isin(*LENGTHS) & has_no_sequence(address), "LOGADDR does not fit into 35 digits"),
        (
            F.col("RECNAME") != name,
            F.concat(F.lit("RECNAME "), "RECNAME", F.lit(" is not that of RECID "), "RECID"),
        ),
        (image & (F.col("DATA").isNull() | (flags.bitwiseAND(DATA) == 0)), "a row record without DATA"),
        ((flags == 0) & address.isNotNull(), "a NOP record with values"),
    )


def address_length(log: DataFrame) -> int:
    """The number of bytes of LOGADDR in this log: 20 if any record has that many (which ends the search)."""
    from pyspark.sql import functions as F

    return LENGTHS[0] if log.filter(F.octet_length("LOGADDR") == LENGTHS[0]).take(1) else LENGTHS[1]


def recname(recid: Column) -> Column:
    """The name of a record kind."""
    from pyspark.sql import functions as F

    return F.element_at(_names(), recid)


def _names() -> Column:
    from pyspark.sql import functions as F

    return F.create_map(*[F.lit(x) for pair in RECNAMES.items() for x in pair])


def is_truncate() -> Column:
    """Whether a record is the DDL record of TRUNCATE TABLE."""
    from pyspark.sql import functions as F

    kind = F.substring("DATA", 1, 4)
    return F.coalesce(
        (F.col("RECID") == DDL)
        & kind.isin(TRUNCATE_TABLE.to_bytes(4, "big"), TRUNCATE_TABLE.to_bytes(4, "little")),
        F.lit(False),
    )


def truncated_name() -> Column:
    """The table name in a truncate's DATA, without quotes."""
    from pyspark.sql import functions as F

    text = F.expr("substring(DATA, 5)").cast("string")
    return F.replace(
        F.replace(F.regexp_replace(text, "\\x00+$", ""), F.lit("\0"), F.lit(".")), F.lit('"'), F.lit("")
    )


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
