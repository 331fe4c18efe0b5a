"""Declares SYS_LOG and its codes, and checks single records, in arrays.

Source: spec/soliddb.md §1-§3, §7. `wire.soliddb_address` explains LOGADDR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE, ChangeTable
from ...model.sequence import TIME_DIGITS, WIDTH
from ...wire.soliddb_address import DDL as DDL_KINDS
from ...wire.soliddb_address import LENGTHS, MADE, OWN, RANKS, ddl_body, sequences
from ...wire.soliddb_address import TRUNCATE as TRUNCATE_TABLE
from ...wire.soliddb_rows import Bytes, flat
from ..base import WHY, VendorColumn, VendorTable
from ..shape import looked_up
from ..spark_functions import F

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
"""RECID -> RECNAME: the complete published list. Other numbers stay unchanged."""
ROWS = (REC_INSERT, REC_UPDATE, REC_DELETE, REC_BEFORE)
OPERS = {REC_INSERT: INSERT, REC_UPDATE: UPDATE, REC_DELETE: DELETE, REC_BEFORE: BEFORE, DDL: TRUNCATE}
"""RECID -> change_oper, for row records and (for DDL) truncates."""
DATA, SHUTDOWN, CAPTURE_OFF = 0x01, 0x02, 0x40
"""Bits of FLAGS; NOP records have none."""

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
KEPT = ("LOGADDR", "RECID", "RECNAME", "RELID", "FLAGS", "TEXTDATA", "DATA")
"""Columns that become separate headers if writing would not produce the same values."""


def checked(log: pa.RecordBatch, length: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Returns which records are log records, their ranks (`rank_of`), and the reasons of bad ones (`WHY`
    first).

    NOP and SHUTDOWN rows without values are no log records: they have no LOGADDR and describe no change.

    Args:
        log: the records, with the columns of SYS_LOG and `WHY`.
        length: the number of bytes of a LOGADDR.
    """
    recid, flags, address = log["RECID"], log["FLAGS"], log["LOGADDR"]
    no_data = pc.equal(pc.bit_wise_and(flags, DATA), 0)
    idle = pc.and_kleene(no_data, pc.equal(pc.fill_null(recid, EMPTY), EMPTY))
    for name in ("LOGADDR", "DATA", "RELID", "TRXID"):
        idle = pc.and_kleene(idle, log[name].is_null())
    size = pc.binary_length(address)
    known = pc.fill_null(pc.is_in(size, pa.array(LENGTHS, size.type)), False)
    names = record_names(recid)
    why = with_reasons(
        log[WHY],
        (recid.is_null(), "no RECID"),
        (address.is_null(), "no LOGADDR"),
        (
            pc.and_(pc.invert(known), address.is_valid()),
            lambda: _joined("LOGADDR has ", size, " bytes, not 20 or 28"),
        ),
        (
            pc.and_(known, pc.not_equal(size, length)),
            lambda: _joined("LOGADDR has ", size, f" bytes, others have {length}"),
        ),
        (pc.and_(known, has_no_sequence(address)), "LOGADDR does not fit into 35 digits"),
        (
            pc.not_equal(log["RECNAME"], names),
            lambda: _joined("RECNAME ", log["RECNAME"], " is not that of RECID ", recid),
        ),
        (
            pc.and_kleene(is_row(recid), pc.or_kleene(log["DATA"].is_null(), no_data)),
            "a row record without DATA",
        ),
        (pc.and_kleene(pc.equal(flags, 0), address.is_valid()), "a NOP record with values"),
    )
    return pc.invert(pc.fill_null(idle, False)), rank_of(address), why


def with_reasons(why: pa.Array, *found: tuple[pa.Array, str | Callable[[], pa.Array]]) -> pa.Array:
    """Returns the reasons of rows, followed by the texts whose conditions are true, joined by `; `. NULL
    counts as false; a function that returns a text per row is only called if some row needs it.

    >>> with_reasons(pa.array([None, "bad"]), (pa.array([True, True]), "odd")).to_pylist()
    ['odd', 'bad; odd']
    """
    nothing = pa.scalar(None, pa.string())
    for condition, text in found:
        if not condition.true_count:
            continue
        texts = pa.scalar(text) if isinstance(text, str) else text()
        more = pc.if_else(pc.fill_null(condition, False), texts, nothing)
        why = pc.coalesce(pc.binary_join_element_wise(why, more, "; "), why, more)
    return why


def _joined(*parts: pa.Array | str) -> pa.Array:
    texts = [p if isinstance(p, str) else p.cast(pa.string()) for p in parts]
    return pc.binary_join_element_wise(*texts, "")


def is_row(recid: pa.Array) -> pa.Array:
    """Whether a record is a row record; false for NULL."""
    return pc.is_in(recid, pa.array(ROWS, recid.type))


def record_names(recid: pa.Array) -> pa.Array:
    """Returns the names of record kinds; NULL for unknown ones."""
    known = pc.index_in(recid, pa.array(list(RECNAMES), recid.type))
    return pa.array(list(RECNAMES.values())).take(known)


def _is_made(address: pa.Array) -> pa.Array:
    """Whether an address is of the second kind (see `wire.soliddb_address`); NULL for NULL."""
    return pc.greater_equal(pc.binary_slice(address, 0, 1), b"\x80")


def has_no_sequence(address: pa.Array) -> pa.Array:
    """Whether an address of a known length has no change sequence: its time or number has too many digits."""
    derived = _is_made(address)
    if not derived.true_count:
        return derived
    time, count = (1 << 55) + 10**TIME_DIGITS, 10 ** (WIDTH - TIME_DIGITS)
    long = pc.greater_equal(pc.binary_slice(address, 0, 7), time.to_bytes(7, "big"))
    many = pc.greater_equal(pc.binary_slice(address, 7, 15), count.to_bytes(8, "big"))
    return pc.and_(derived, pc.or_(long, many))


def rank_of(address: pa.Array) -> pa.Array:
    """Returns the rank of an address that was derived from a change sequence (int); NULL for solidDB's own.

    >>> from tailrace.wire.soliddb_address import make
    >>> rank_of(pa.array([make("7".zfill(35), 4), b"\\x01" * 20, None])).to_pylist()
    [4, None, None]
    """
    # The bytes between the ordering part and the rank are zero; solidDB has a transaction's id there.
    own, derived = (
        pc.is_in(pc.binary_slice(address, used, -1), pa.array([bytes(n - used - 1) for n in LENGTHS]))
        for used in (OWN, MADE)
    )
    place = pc.index_in(pc.binary_slice(address, -1), pa.array([bytes([n]) for n in RANKS.values()]))
    rank = pa.array(list(RANKS.values()), pa.int32()).take(place)
    return pc.if_else(pc.if_else(_is_made(address), derived, own), rank, None)


def sequences_of(address: pa.Array) -> pa.Array:
    """Returns the change sequences of addresses; NULL for those that have none."""
    good, size = pc.invert(has_no_sequence(address)), pc.binary_length(address)
    found = pa.nulls(len(address), pa.string())
    for length in LENGTHS:
        mine = pc.fill_null(pc.and_(pc.equal(size, length), good), False)
        if mine.true_count:
            some = sequences(address_bytes(address.filter(mine)))
            place = np.cumsum(mine.to_numpy(zero_copy_only=False)) - 1
            found = pc.if_else(mine, some.take(pa.array(np.maximum(place, 0))), found)
    return found


def address_bytes(values: pa.Array) -> Bytes:
    """Returns LOGADDR, which has the same length in all good records, as a matrix."""
    buf, starts, ends = flat(values)
    if not len(values):
        return np.zeros((0, 0), np.uint8)
    return buf[starts[0] : ends[-1]].reshape(len(values), -1)


def address_length(log: DataFrame) -> int:
    """Returns the number of bytes of LOGADDR in this log: 20 if any record has 20 (which ends the search)."""
    return LENGTHS[0] if log.filter(F.octet_length("LOGADDR") == LENGTHS[0]).take(1) else LENGTHS[1]


def is_truncate(recid: pa.Array, data: pa.Array) -> pa.Array:
    """Whether a record is the DDL record of TRUNCATE TABLE."""
    ddl = pc.fill_null(pc.equal(recid, DDL), False)
    if not ddl.true_count:
        return ddl
    kinds = pa.array([TRUNCATE_TABLE.to_bytes(4, order) for order in ("big", "little")])
    return pc.and_(ddl, pc.is_in(pc.binary_slice(data, 0, 4), kinds))


def truncated_names(data: pa.Array) -> pa.Array:
    """Returns the table names (as bytes) in the DATA of truncates, without quotes."""
    names = pc.replace_substring_regex(pc.binary_slice(data, 4, 2**31 - 1), "\\x00+$", "")
    return pc.replace_substring(pc.replace_substring(names, "\0", "."), '"', "")


def truncate_body(table: str) -> bytes:
    """Returns DATA of a truncate record."""
    return ddl_body(TRUNCATE_TABLE, table)


def statements(records: ChangeTable) -> DataFrame:
    """Returns the DDL and SQL records of `_SYSTEM.SYS_LOG` (spec/soliddb.md §5.2): position, `LOGRECID`,
    `operation`, the object's `name`, and the `sql` text of SQL records."""
    head, text = F.hex(F.substring("DATA", 1, 4)), F.expr("substring(DATA, 5)").cast("string")
    swapped = F.concat(*[F.substring(head, n, 2) for n in (7, 5, 3, 1)])
    first, last = (F.conv(x, 16, 10).cast("bigint") for x in (head, swapped))
    ddl = F.col("RECID") == DDL
    kind = F.when(~first.isin(*DDL_KINDS) & last.isin(*DDL_KINDS), last).otherwise(first)
    plain = F.regexp_replace(F.when(ddl, text).otherwise(F.col("DATA").cast("string")), "\\x00+$", "")
    return (
        records.df.filter(F.col("RECID").isin(DDL, SQL))
        .withColumns({"LOGRECID": F.when(ddl, kind), "_text": F.replace(plain, F.lit("\0"), F.lit("."))})
        .select(
            "LOGADDR", "TRXID", "RELID", "RECID", "LOGRECID",
            looked_up(DDL_KINDS, F.col("LOGRECID")).alias("operation"),
            F.when(ddl, F.col("_text")).alias("name"), F.when(~ddl, F.col("_text")).alias("sql"),
        )
    )  # fmt: skip
