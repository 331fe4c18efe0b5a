"""Handles transactions in solidDB's log: the order of their records, the state of records according to marks,
and duplicate records.

A transaction starts with TRX_START; if that is missing, after the COMMIT of the previous one. In order, its
marks precede its records, which are ordered by statement and LOGADDR. Source: spec/soliddb.md §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...wire.soliddb_rows import Bools, Ints
from ..spark_functions import F
from .log import CAPTURE_OFF, COLUMNS, COMMIT, START, address_bytes
from .rules import MADE, MARK, MOVES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Numbers = npt.NDArray[np.uint64]
_OWN = ("RELID", "STMTTRXID", MADE, MOVES)
"""The sort keys of a transaction's records before LOGADDR; its marks have none."""
_ADDRESS = 28


class Marks(NamedTuple):
    """TRX_START and COMMIT records in order; `place` is transaction, LOGADDR and RECID."""

    transaction: npt.NDArray[np.bytes_]
    place: npt.NDArray[np.bytes_]
    recid: Ints
    off: Bools

    def since(self, first: int) -> Marks:
        """Returns the marks from an index on."""
        return Marks(self.transaction[first:], self.place[first:], self.recid[first:], self.off[first:])


class RecordStates(NamedTuple):
    """The state of each record: the number of marks before it, whether its transaction's TRX_START and COMMIT
    exist, whether the COMMIT may still follow, and whether its TRX_START has CAPTURE_OFF."""

    part: Ints
    begun: Bools
    committed: Bools
    waits: Bools
    off: Bools

    def where(self, stays: Bools) -> RecordStates:
        """Returns the state of the selected records."""
        some = (self.begun, self.committed, self.waits, self.off)
        return RecordStates(self.part[stays], *(values[stays] for values in some))


def marks_of(batch: pa.RecordBatch, before: Marks | None) -> Marks:
    transaction, place = _positions(batch)
    flags = batch["FLAGS"].fill_null(0).to_numpy(zero_copy_only=False)
    recid = batch["RECID"].to_numpy(zero_copy_only=False)
    result = Marks(transaction, place, recid, (recid == START) & (flags & CAPTURE_OFF != 0))
    if before is None:
        return result
    return Marks(*(np.concatenate(both) for both in zip(before, result, strict=True)))


def needed(marks: Marks, rest: pa.RecordBatch, batch: pa.RecordBatch) -> Marks:
    """Returns the marks of transactions that wait, or that the next batch may continue."""
    oldest = rest if rest.num_rows else batch.slice(max(batch.num_rows - 1, 0))
    if not oldest.num_rows:
        return marks
    first = np.searchsorted(marks.transaction, _positions(oldest.slice(0, 1))[0][0])
    return marks.since(int(first))


def _positions(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.bytes_]]:
    """Returns the transaction of each record, and its position over all transactions, as comparable bytes."""
    n = rows.num_rows
    result = np.zeros((n, 9 + _ADDRESS + 1), np.uint8)
    trxid = rows["TRXID"]
    result[:, 0] = 1 + trxid.is_valid().to_numpy(zero_copy_only=False)
    number = trxid.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64) ^ np.uint64(1 << 63)
    result[:, 1:9] = number.astype(">u8").view(np.uint8).reshape(n, 8)
    address = address_bytes(rows["LOGADDR"])
    result[:, 9 : 9 + address.shape[1]] = address
    result[:, -1] = rows["RECID"].to_numpy(zero_copy_only=False) + 1
    whole = np.ascontiguousarray(result).view(f"S{result.shape[1]}")[:, 0]
    return np.ascontiguousarray(result[:, :9]).view("S9")[:, 0], whole


def transactions_of(rows: pa.RecordBatch, marks: Marks) -> RecordStates:
    transaction, place = _positions(rows)
    part = np.searchsorted(marks.place, place)
    most = len(marks.place) - 1
    if most < 0:
        no = np.zeros(len(part), np.bool_)
        return RecordStates(part, no, no, ~no, no)
    following, before = np.minimum(part, most), np.maximum(part - 1, 0)
    next_, last = (
        (part <= most) & (marks.transaction[following] == transaction),
        (part > 0) & (marks.transaction[before] == transaction),
    )
    begun = last & (marks.recid[before] == START)
    return RecordStates(
        part, begun, next_ & (marks.recid[following] == COMMIT), ~next_, last & marks.off[before]
    )


def ordered(log: DataFrame, *, statements: bool = True) -> DataFrame:
    """Returns records with those of a transaction in one task, in order, by one shuffle and one sort.

    Args:
        log: the records.
        statements: whether the records of a statement stay together.
    """
    mark, own = F.col(MARK), _OWN if statements else ()
    within = [~mark, *(F.when(~mark, F.col(name)) for name in own)]
    return log.repartition("TRXID").sortWithinPartitions("TRXID", *within, "LOGADDR", "RECID")


def order_of(batch: pa.RecordBatch, *, statements: bool = True) -> npt.NDArray[np.int64]:
    """Returns the indexes of good records in that order.

    >>> order_of(pa.record_batch({
    ...     "TRXID": pa.array([2, 1, 1]), "RECID": pa.array([7, 1, 12]),
    ...     "LOGADDR": pa.array([b"b", b"c", b"d"]),
    ...     MARK: pa.array([True, False, True]),
    ... }), statements=False).tolist()
    [2, 1, 0]
    """
    mark, own = batch[MARK], _OWN if statements else ()
    within = [pc.invert(mark), *(pc.if_else(mark, None, batch[name]) for name in own)]
    first = [part for values in (batch["TRXID"], *within) for part in _numbers(values)]
    keys = _packed([*first, *_parts(batch["LOGADDR"]), *_numbers(batch["RECID"])])
    return np.lexsort(keys[::-1]) if keys else np.arange(batch.num_rows)


def _numbers(values: pa.Array) -> list[_Numbers]:
    """Returns numbers that compare like the values, NULL first."""
    known = values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint64)
    plain = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return [known, plain.view(np.uint64) ^ np.uint64(1 << 63)]


def _parts(address: pa.Array) -> list[_Numbers]:
    """Returns several numbers for each address that compare like it, one after the other."""
    octets = address_bytes(address)
    padded = np.zeros((len(address), -(-octets.shape[1] // 8) * 8), np.uint8)
    padded[:, : octets.shape[1]] = octets
    return [
        padded[:, i : i + 8].copy().view(">u8")[:, 0].astype(np.uint64) for i in range(0, padded.shape[1], 8)
    ]


def _packed(keys: Sequence[_Numbers]) -> list[_Numbers]:
    """Returns fewer numbers with the same order, the first before the others, by packing several into one."""
    result: list[_Numbers] = []
    room = 0
    for key in keys:
        low, high = (int(key.min(initial=2**64 - 1)), int(key.max(initial=0)))
        bits = max(high - low, 0).bit_length()
        if not bits:
            continue
        plain = key - np.uint64(low)
        if bits <= room:
            result[-1] = result[-1] << np.uint64(bits) | plain
            room -= bits
        else:
            result.append(plain)
            room = 64 - bits
    return result


_FIRST = ["LOGADDR", *(c for c in COLUMNS if c != "LOGADDR")]
"""Positions first: if no two are equal, nothing else is compared."""


class Once:
    """Separates the records of a task from their copies, batch by batch. They are ordered (`ordered`), so a
    copy is directly after the record that it is equal to in all columns of SYS_LOG."""

    def __init__(self) -> None:
        self._last: pa.RecordBatch | None = None

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Returns the records of the next batch, and their copies."""
        n = batch.num_rows
        if not n:
            return batch, batch
        copy = np.zeros(n, np.bool_)
        copy[1:] = _equal(batch.slice(0, n - 1), batch.slice(1))
        if self._last is not None:
            copy[:1] = _equal(self._last, batch.slice(0, 1))
        self._last = batch.slice(n - 1)
        if not copy.any():
            return batch, batch.slice(n)
        return batch.filter(pa.array(~copy)), batch.filter(pa.array(copy))


def _equal(some: pa.RecordBatch, others: pa.RecordBatch) -> Bools:
    """Returns for each row whether all columns are equal."""
    same: Bools = np.ones(some.num_rows, np.bool_)
    for name in _FIRST:
        if not same.any():
            break
        same &= equal(some[name], others[name])
    return same


def equal(a: pa.Array, b: pa.Array) -> Bools:
    """Returns for each value whether two columns are equal; NULL is an ordinary value.

    >>> equal(pa.array([1, 2, None, None]), pa.array([1, 3, None, 4])).tolist()
    [True, False, True, False]
    """
    both = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(a.is_null(), b.is_null()))
    found: Bools = both.to_numpy(zero_copy_only=False)
    return found
