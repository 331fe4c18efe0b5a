"""The order of records in which transactions, and the pairs in them, are found.

A transaction's marks come first, then its records statement by statement, in order of LOGADDR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import arrow_functions
from ..arrow_functions import AnyColumn, AnyRows, ArrowRows, Functions
from .log import COMMIT, REC_DELETE, REC_INSERT, START
from .marks import addresses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK, MADE, MOVES = "_mark", "_made", "_moves"
"""Columns that records come with: whether one is a mark of a transaction, has a LOGADDR made from a change
sequence, inserts or deletes."""
_Numbers = npt.NDArray[np.uint64]


def marked(f: Functions, log: AnyRows) -> AnyRows:
    """The records with `MARK` and `MOVES`."""
    recid = f.col("RECID")
    return log.withColumns({MARK: recid.isin(START, COMMIT), MOVES: recid.isin(REC_INSERT, REC_DELETE)})


def _within(f: Functions, *, statements: bool) -> list[AnyColumn]:
    """What orders the records of a transaction before LOGADDR does."""
    own = ("RELID", "STMTTRXID", MADE, MOVES) if statements else ()
    return [~f.col(MARK), *(f.when(~f.col(MARK), f.col(name)) for name in own)]


def ordered(log: DataFrame, *, statements: bool = True) -> DataFrame:
    """Records (`marked`) with those of a transaction in one task, in order: one shuffle, one sort.

    Args:
        log: the records.
        statements: whether statements are to be told apart.
    """
    from pyspark.sql import functions as F

    within = _within(F, statements=statements)
    return log.repartition("TRXID").sortWithinPartitions("TRXID", *within, "LOGADDR", "RECID")


def order_of(batch: pa.RecordBatch, *, statements: bool = True) -> npt.NDArray[np.int64]:
    """The places of good records (`marked`) in that order.

    >>> order_of(pa.record_batch({
    ...     "TRXID": pa.array([2, 1, 1]), "RECID": pa.array([7, 1, 12]),
    ...     "LOGADDR": pa.array([b"b", b"c", b"d"]),
    ...     MARK: pa.array([True, False, True]),
    ... }), statements=False).tolist()
    [2, 1, 0]
    """
    rows = ArrowRows(batch)
    within = [rows.array(c) for c in _within(arrow_functions, statements=statements)]
    first = [part for values in (batch["TRXID"], *within) for part in _numbers(values)]
    keys = _packed([*first, *_places(batch["LOGADDR"], batch.num_rows), *_numbers(batch["RECID"])])
    return np.lexsort(keys[::-1]) if keys else np.arange(batch.num_rows)


def _numbers(values: pa.Array) -> list[_Numbers]:
    """Values as numbers that compare as they do, NULL first."""
    known = values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint64)
    plain = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return [known, plain.view(np.uint64) ^ np.uint64(1 << 63)]


def _places(address: pa.Array, n: int) -> list[_Numbers]:
    octets = addresses(address, n)
    padded = np.zeros((n, -(-octets.shape[1] // 8) * 8), np.uint8)
    padded[:, : octets.shape[1]] = octets
    return [
        padded[:, i : i + 8].copy().view(">u8")[:, 0].astype(np.uint64) for i in range(0, padded.shape[1], 8)
    ]


def _packed(keys: Sequence[_Numbers]) -> list[_Numbers]:
    """Fewer numbers that order as these do, the first before the others: what fits into one becomes one."""
    made: list[_Numbers] = []
    room = 0
    for key in keys:
        low, high = (int(key.min(initial=2**64 - 1)), int(key.max(initial=0)))
        bits = max(high - low, 0).bit_length()
        if not bits:
            continue
        plain = key - np.uint64(low)
        if bits <= room:
            made[-1] = made[-1] << np.uint64(bits) | plain
            room -= bits
        else:
            made.append(plain)
            room = 64 - bits
    return made
