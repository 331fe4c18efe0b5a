"""Transactions in solidDB's log: what the marks among a task's records say of the others, in arrays.

A transaction begins with TRX_START; where that is missing, behind the COMMIT of the one before.
Source: spec/soliddb.md §3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...wire.soliddb_rows import Bools, Bytes, Ints, flat
from .log import CAPTURE_OFF, COMMIT, START

_ADDRESS = 28


class Marks(NamedTuple):
    """TRX_START and COMMIT records in order; `place` tells transaction, LOGADDR and RECID."""

    transaction: npt.NDArray[np.bytes_]
    place: npt.NDArray[np.bytes_]
    recid: Ints
    off: Bools

    def since(self, first: int) -> Marks:
        """Those from a place on."""
        return Marks(self.transaction[first:], self.place[first:], self.recid[first:], self.off[first:])


class Of(NamedTuple):
    """Of each record: how many marks are before it, whether its transaction's TRX_START is there, whether its
    COMMIT is there or may still come, whether its TRX_START has CAPTURE_OFF."""

    part: Ints
    begun: Bools
    committed: Bools
    waits: Bools
    off: Bools

    def where(self, stays: Bools) -> Of:
        """Of some records."""
        some = (self.begun, self.committed, self.waits, self.off)
        return Of(self.part[stays], *(values[stays] for values in some))


def marks_of(batch: pa.RecordBatch, before: Marks | None) -> Marks:
    transaction, place = _places(batch)
    flags = batch["FLAGS"].fill_null(0).to_numpy(zero_copy_only=False)
    recid = batch["RECID"].to_numpy(zero_copy_only=False)
    made = Marks(transaction, place, recid, (recid == START) & (flags & CAPTURE_OFF != 0))
    if before is None:
        return made
    return Marks(*(np.concatenate(both) for both in zip(before, made, strict=True)))


def needed(marks: Marks, rest: pa.RecordBatch, batch: pa.RecordBatch) -> Marks:
    """The marks of the transactions that wait, or that the next batch may go on with."""
    oldest = rest if rest.num_rows else batch.slice(max(batch.num_rows - 1, 0))
    if not oldest.num_rows:
        return marks
    first = np.searchsorted(marks.transaction, _places(oldest.slice(0, 1))[0][0])
    return marks.since(int(first))


def _places(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.bytes_]]:
    """The transaction of each record, and its place over all transactions, as bytes that compare."""
    n = rows.num_rows
    made = np.zeros((n, 9 + _ADDRESS + 1), np.uint8)
    trxid = rows["TRXID"]
    made[:, 0] = 1 + trxid.is_valid().to_numpy(zero_copy_only=False)
    number = trxid.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64) ^ np.uint64(1 << 63)
    made[:, 1:9] = number.astype(">u8").view(np.uint8).reshape(n, 8)
    address = addresses(rows["LOGADDR"], n)
    made[:, 9 : 9 + address.shape[1]] = address
    made[:, -1] = rows["RECID"].to_numpy(zero_copy_only=False) + 1
    whole = np.ascontiguousarray(made).view(f"S{made.shape[1]}")[:, 0]
    return np.ascontiguousarray(made[:, :9]).view("S9")[:, 0], whole


def addresses(values: pa.Array, n: int) -> Bytes:
    """LOGADDR, which has one length in all good records, as a matrix."""
    buf, starts, ends = flat(values)
    if not n:
        return np.zeros((0, 0), np.uint8)
    return buf[starts[0] : ends[-1]].reshape(n, -1)


def transactions_of(rows: pa.RecordBatch, marks: Marks) -> Of:
    transaction, place = _places(rows)
    part = np.searchsorted(marks.place, place)
    most = len(marks.place) - 1
    if most < 0:
        no = np.zeros(len(part), np.bool_)
        return Of(part, no, no, ~no, no)
    behind, before = np.minimum(part, most), np.maximum(part - 1, 0)
    next_, last = (
        (part <= most) & (marks.transaction[behind] == transaction),
        (part > 0) & (marks.transaction[before] == transaction),
    )
    begun = last & (marks.recid[before] == START)
    return Of(part, begun, next_ & (marks.recid[behind] == COMMIT), ~next_, last & marks.off[before])
