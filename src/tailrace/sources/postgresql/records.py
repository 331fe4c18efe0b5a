"""Converts replication messages to log records, with NumPy for frequent kinds and one by one for rare ones.

The state of a transaction that spans chunks is kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import FormatError
from ...wire import pgmessages, pgoutput, records

HEADER = 25
"""Bytes of XLogData before the plugin's message: letter w, start, server WAL end, send time."""

_RECIDS = np.full(256, -1, np.int32)
for _letter, _recid in {
    "B": records.TRX_START,
    "C": records.COMMIT,
    "I": records.INSERT,
    "U": records.UPDATE,
    "D": records.DELETE,
    "T": records.DDL,
    "M": records.MESSAGE,
    "R": 0,
    "Y": 0,
    "O": 0,  # 0: no record
}.items():
    _RECIDS[ord(_letter)] = _recid
_ONE_BY_ONE = np.isin(np.arange(256), list(b"RTMYO"))
_ADDRESS = np.dtype([("lsn", ">u8"), ("ordinal", ">u8"), ("rest", ">u4")])

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OpenTransaction:
    """The open transaction at the end of a chunk; `ordinal` is its next record's number."""

    xid: int
    commit_lsn: int
    commit_us: int
    ordinal: int


@dataclass(frozen=True)
class Built:
    """Records of a chunk.

    Attributes:
        records: the records.
        relations: the Relation messages, with the index of the record that follows each.
        complete: the number of leading records in whole transactions.
        end: the LSN after these; None if the chunk ends no transaction.
    """

    records: pa.RecordBatch
    relations: list[tuple[int, pgmessages.RelationMessage]]
    complete: int
    end: int | None


class RecordBuilder:
    """Converts XLogData payloads to log records, and keeps the open transaction between calls.

    Transactions and messages before `after` (an LSN) are left out, because they are in LOG already. A message
    outside of transactions gets the last byte of its record as position, because the next record, which may
    be a commit, begins after it.
    """

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.open: OpenTransaction | None = None
        self.last_commit_us: int | None = None

    def build(self, parts: Sequence[bytes | memoryview]) -> Built:
        """Returns the records of these payloads (whole CopyData contents with the letter w), in order."""
        return _Batch(self, parts).built()


EMPTY = pa.RecordBatch.from_pylist([], schema=records.RECORDS)


class _Batch:
    """The arrays of one call. Per message: kind, copies (number of its records), transaction; then per
    record."""

    def __init__(self, state: RecordBuilder, parts: Sequence[bytes | memoryview]) -> None:
        self.state = state
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        self.ends: Ints = np.cumsum(sizes)
        self.starts: Ints = self.ends - sizes + HEADER
        self.raw = b"".join(parts)
        self.buf = np.frombuffer(self.raw, np.uint8)
        self.kind, self.relid = pgoutput.heads(self.buf, self.starts, self.ends)
        self.recid = _RECIDS[self.kind]
        if (self.recid < 0).any():
            bad = int(np.argmax(self.recid < 0))
            raise FormatError(
                f"unexpected replication message {chr(self.kind[bad])!r}",
                where=f"message {bad} of {len(parts)}",
                hint="the slot must use pgoutput, protocol 1, without streaming and two-phase commit",
            )
        self.copies: Ints = (self.recid > 0).astype(np.int64)
        self.truncates: dict[int, tuple[int, ...]] = {}
        self.relations: list[tuple[int, pgmessages.RelationMessage]] = []
        self.outside: dict[int, int] = {}  # non-transactional messages: index -> LSN of the record's end
        for index in np.flatnonzero(_ONE_BY_ONE[self.kind]).tolist():
            self._rare(index)
        self.first: Ints = np.cumsum(self.copies) - self.copies  # record index of a message's first record

    def _rare(self, index: int) -> None:
        letter = chr(self.kind[index])
        data = self.raw[self.starts[index] : self.ends[index]]
        if letter == "R":
            self.relations.append((index, pgmessages.relation(data)))
        elif letter == "T":
            self.truncates[index] = pgmessages.truncate(data).relids
            self.copies[index] = len(self.truncates[index])
        elif letter == "M":
            message = pgmessages.message(data)
            if not message.transactional:
                self.outside[index] = message.lsn

    def built(self) -> Built:
        state = self.state
        begins, commits = np.flatnonzero(self.kind == ord("B")), np.flatnonzero(self.kind == ord("C"))
        _, stops, _ = pgoutput.commits(self.buf, self.starts[commits], self.ends[commits])
        self._check(begins, commits)
        lsns, times, xids = pgoutput.begins(self.buf, self.starts[begins], self.ends[begins])
        held = state.open or OpenTransaction(0, 0, state.last_commit_us or 0, 0)
        transaction = np.cumsum(self.kind == ord("B"))  # 0: the one carried over
        xids = np.concatenate(([held.xid], xids))
        lsns = np.concatenate(([held.commit_lsn], lsns))
        times = np.concatenate(([held.commit_us], times))
        first = np.concatenate(([-held.ordinal], self.first[begins]))

        source = np.repeat(np.arange(len(self.kind)), self.copies)  # record -> message
        of = transaction[source]
        columns: dict[str, Any] = {
            "RECID": self.recid[source],
            "TRXID": xids[of],
            "RELID": self.relid[source],
            "lsn": lsns[of],
            "ordinal": np.arange(len(source)) - first[of],
            "COMMIT_TIME": times[of],
        }
        self._place_rare(columns)
        end, complete = self._end(commits, stops)
        self._carry(
            begins, commits, OpenTransaction(int(xids[-1]), int(lsns[-1]), int(times[-1]), 0), first, source
        )
        keep = columns["lsn"] >= state.after
        relations = [(int(self.first[index]), message) for index, message in self.relations]
        if not keep.all():
            kept = np.concatenate(([0], np.cumsum(keep)))
            relations = [(int(kept[index]), message) for index, message in relations]
            complete = int(kept[complete])
            columns = {name: values[keep] for name, values in columns.items()}
            source = source[keep]
        return Built(self._records(columns, source), relations, complete, end)

    def _check(self, begins: Ints, commits: Ints) -> None:
        """Checks that begins and commits alternate, and that all records except non-transactional messages
        are between them."""
        turns = np.zeros(len(self.kind), np.int64)
        turns[begins], turns[commits] = 1, -1
        inside = np.cumsum(turns) + (self.state.open is not None)
        wrong = (inside < 0) | (inside > 1) | ((inside == 0) & (turns == 0) & (self.recid > 0))
        wrong[list(self.outside)] &= inside[list(self.outside)] < 0
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise FormatError(
                f"replication message {chr(self.kind[bad])!r} "
                + ("inside" if inside[bad] > 0 else "outside")
                + " of a transaction",
                where=f"message {bad} of {len(self.kind)}",
                hint="the slot must use pgoutput, protocol 1, without streaming and two-phase commit",
            )

    def _place_rare(self, columns: dict[str, Any]) -> None:
        for index, relids in self.truncates.items():
            at = self.first[index]
            columns["RELID"][at : at + len(relids)] = relids
        for index, lsn in self.outside.items():
            at = self.first[index]
            columns["lsn"][at], columns["ordinal"][at], columns["TRXID"][at] = lsn - 1, 0, 0
            if not columns["COMMIT_TIME"][at]:  # no commit in this stream yet: use the send time
                sent = self.starts[index] - 8
                columns["COMMIT_TIME"][at] = (
                    int.from_bytes(self.raw[sent : sent + 8], "big") + pgoutput.EPOCH_US
                )

    def _end(self, commits: Ints, ends: Ints) -> tuple[int | None, int]:
        """Returns the LSN after the last whole transaction, and the number of records up to it."""
        last, end = -1, None
        if len(commits):
            last = int(commits[-1])
            end = int(ends[-1])
        if self.outside:
            message, lsn = max(self.outside.items())
            last, end = max(last, message), max(end or 0, lsn)
        return end, int(self.first[last] + self.copies[last]) if last >= 0 else 0

    def _carry(self, begins: Ints, commits: Ints, newest: OpenTransaction, first: Ints, source: Ints) -> None:
        state = self.state
        began = int(begins[-1]) if len(begins) else -1
        ended = int(commits[-1]) if len(commits) else -1
        if began > ended or (state.open and ended < 0):
            ordinal = len(source) - int(first[-1])
            state.open = OpenTransaction(newest.xid, newest.commit_lsn, newest.commit_us, ordinal)
        elif ended >= 0:
            state.open = None
        if len(begins):
            state.last_commit_us = newest.commit_us

    def _records(self, columns: dict[str, Any], source: Ints) -> pa.RecordBatch:
        count = len(source)
        address = np.zeros(count, _ADDRESS)
        address["lsn"], address["ordinal"] = columns["lsn"], columns["ordinal"]
        offsets = np.arange(0, _ADDRESS.itemsize * (count + 1), _ADDRESS.itemsize, dtype=np.int32)
        xid = pa.array(columns["TRXID"])
        arrays = [
            pa.array(columns["RECID"]),
            xid,
            xid,
            pa.array(columns["RELID"]),
            pa.array(np.full(count, records.FLAG_DATA, np.int32)),
            pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(address)]),
            self._data(source),
            pa.array(columns["COMMIT_TIME"]).cast(pa.timestamp("us", "UTC")),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=records.RECORDS)

    def _data(self, source: Ints) -> pa.Array:
        """Returns the messages without their headers.

        Headers and messages form one binary array over the received bytes, of which native code copies every
        second entry.
        """
        borders = np.empty(2 * len(self.starts) + 1, np.int32)
        borders[:-1:2], borders[1::2] = self.starts, self.ends
        borders[-1] = borders[-2]
        parts = [None, pa.py_buffer(borders), pa.py_buffer(self.raw)]
        return pa.Array.from_buffers(pa.binary(), 2 * len(self.starts), parts).take(pa.array(2 * source))
