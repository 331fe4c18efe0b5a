"""The captured log (LOG): the source's log records in commit order, append-only; and the relation history.

LOG is a Delta table in the shape of solidDB's SYS_LOG (spec/soliddb.md §1) with two more columns,
`COMMIT_TIME` and `CHANGE_SEQ`. One commit is one Parquet file and ends with a transaction, so that readers
never see a partial transaction. Change sequences are assigned here. They depend only on what was committed
before, so records that are captured again after a crash get the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import FormatError
from ..model import sequence
from ..model.change import Relation
from ..model.positions import BEFORE_ALL, ChangeNumber, ChangeSeq
from ..wire.records import Chunk
from . import delta as lake
from . import log_retention
from .announced import Announced
from .failpoints import reach

BEGIN, COMMIT, INSERT, UPDATE, DELETE, DDL, MESSAGE = 7, 12, 1, 3, 4, 13, 100
RECNAMES = {
    0: "DBE_LOGREADER_LOG_REC_EMPTY",
    INSERT: "DBE_LOGREADER_LOG_REC_INSERT",
    UPDATE: "DBE_LOGREADER_LOG_REC_UPDATE",
    DELETE: "DBE_LOGREADER_LOG_REC_DELETE_FULL",
    BEGIN: "DBE_LOGREADER_LOG_REC_TRX_START",
    COMMIT: "DBE_LOGREADER_LOG_REC_COMMIT",
    DDL: "DBE_LOGREADER_LOG_REC_DDL",
    MESSAGE: "TAILRACE_LOG_REC_MESSAGE",
}
"""RECNAME by RECID. Numbers from 100 on are defined by tailrace."""
_KINDS = np.array(sorted(RECNAMES))
_NAMES = pa.array([RECNAMES[k] for k in sorted(RECNAMES)])

POSITION_BYTES = 20
SCHEMA = pa.schema(
    [
        ("RECID", pa.int32()), ("RECNAME", pa.string()), ("TRXID", pa.int64()), ("STMTTRXID", pa.int64()),
        ("RELID", pa.int64()), ("FLAGS", pa.int32()), ("LOGADDR", pa.binary()), ("DATA", pa.binary()),
        ("COMMIT_TIME", pa.timestamp("us", "UTC")), ("CHANGE_SEQ", pa.string()),
    ]
)  # fmt: skip
RELATIONS_SCHEMA = pa.schema(
    [
        ("RELID", pa.int64()), ("SCHEMA_NAME", pa.string()), ("TABLE_NAME", pa.string()),
        ("FROM_LOGADDR", pa.binary()), ("FROM_CHANGE_SEQ", pa.string()), ("IDENTITY", pa.string()),
        ("LAYOUT", pa.string()),
    ]
)  # fmt: skip
# One file is one commit, and readers select by CHANGE_SEQ, so whole old commits may be removed.
PROPERTIES = {"delta.appendOnly": "false", "delta.enableDeletionVectors": "false"}

_WORDS = [f"tailrace/position/{k}" for k in range(3)]
_NUMBER, _TIME = "tailrace/number", "tailrace/time"


@dataclass(frozen=True)
class Layout:
    """A relation, and the position (20 bytes) and change sequence from which it is valid."""

    relation: Relation
    from_position: bytes
    from_seq: ChangeSeq


def number(layout: Layout) -> ChangeNumber:
    """Returns the change number from which the layout is valid."""
    return sequence.number_of(layout.from_seq)


@dataclass(frozen=True)
class LogState:
    """The end of LOG: the source position to resume after (None: never written), and the last change number
    and time part (0 before the first record)."""

    position: bytes | None
    number: ChangeNumber
    time: int


@dataclass(frozen=True)
class Message:
    """A record of kind MESSAGE in LOG: change number, change sequence, position, DATA."""

    number: ChangeNumber
    change_seq: ChangeSeq
    position: bytes
    data: bytes


@dataclass(frozen=True)
class LogCommit:
    """A commit of LOG: number of records and transactions, position after it, Delta version, and messages."""

    records: int
    transactions: int
    position: bytes
    version: int | None
    messages: tuple[Message, ...] = ()


def state(log: str) -> LogState:
    """Returns the end of a LOG, read from its last commit without reading rows."""
    *words, number, time = lake.progresses(log, [*_WORDS, _NUMBER, _TIME])
    if number is None or time is None:
        return LogState(None, BEFORE_ALL, 0)
    raw = b"".join((word or 0).to_bytes(7, "big") for word in words)
    return LogState(raw[:POSITION_BYTES], number, time)


def version_after(log: str, number: ChangeNumber | None) -> int:
    """Returns the first version of LOG with records after a change number (None: with any), or the newest.

    Consumers that have stored up to that number do not need older versions, whose files may be removed. Only
    a few commits are read.
    """
    return log_retention.version_after(log, _NUMBER, number)


def layouts(relations: str) -> list[Layout]:
    """Returns the relation history, ordered by start of validity; empty without one."""
    if not lake.exists(relations):
        return []
    rows = lake.read(relations).to_pylist()
    found = [Layout(Relation.from_json(r["LAYOUT"]), r["FROM_LOGADDR"], r["FROM_CHANGE_SEQ"]) for r in rows]
    return sorted(found, key=lambda one: (one.from_seq, one.from_position))


def history(relations: str) -> dict[str, list[Layout]]:
    """Returns the layouts of each table in order. A relation keeps its first name."""
    names: dict[int, str] = {}
    found: dict[str, list[Layout]] = {}
    for one in layouts(relations):
        name = names.setdefault(one.relation.relid, one.relation.table)
        found.setdefault(name, []).append(one)
    return found


def latest(history: Sequence[Layout]) -> dict[int, Relation]:
    """Returns the newest layout of each relation id."""
    return {one.relation.relid: one.relation for one in history}


def record_layouts(relations: str, new: Sequence[Layout]) -> None:
    """Adds layouts to the relation history, before the commit that first needs them."""
    if not new:
        return
    rows = [
        {
            "RELID": one.relation.relid,
            "SCHEMA_NAME": one.relation.schema,
            "TABLE_NAME": one.relation.name,
            "FROM_LOGADDR": one.from_position,
            "FROM_CHANGE_SEQ": one.from_seq,
            "IDENTITY": one.relation.identity,
            "LAYOUT": one.relation.to_json(),
        }
        for one in new
    ]
    lake.append(relations, pa.Table.from_pylist(rows, schema=RELATIONS_SCHEMA))


class LogWriter:
    """Appends chunks to LOG, with whole transactions per commit.

    `add` streams records to the open part, so a transaction may be larger than memory. `commit` ends the part
    at the last whole transaction. Between two commits, memory holds one chunk.
    """

    def __init__(self, log: str, relations: str) -> None:
        lake.create(log, SCHEMA, PROPERTIES)
        self._log, self._relations = log, relations
        self.state = state(log)
        self._number, self._time = int(self.state.number), self.state.time
        self._reached = self.state.number if self.state.position is not None else None
        self._part: lake.Part | None = None
        self._new: list[Layout] = []
        self._messages: list[Message] = []
        self._waiting: list[Relation] = []  # layouts whose first record has not arrived yet
        self.announced = Announced(lambda: [(one.relation, one.from_position) for one in layouts(relations)])
        self._tail: pa.RecordBatch | None = None  # records after the last whole transaction
        self._transactions = 0
        self._position: bytes | None = None
        self._bytes = 0

    @property
    def ready(self) -> bool:
        """Whether there are whole transactions to commit."""
        return self._position is not None

    def takes(self, chunk: Chunk) -> bool:
        """Returns whether a chunk may be added before the next commit.

        It may not if it ends no transaction while whole ones are waiting, because a commit would include a
        part of it.
        """
        return self._position is None or chunk.position is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes of records in the open part since the last commit."""
        return self._bytes

    def add(self, chunk: Chunk) -> None:
        """Adds the records of a chunk; nothing is visible before `commit`.

        Raises:
            ValueError: a commit is required first (`takes`).
        """
        if not self.takes(chunk):
            raise ValueError("the chunk ends no transaction: commit the waiting ones before adding it")
        if self._tail is not None:
            # Records after the last whole transaction start the next commit's part.
            self._write(self._tail)
            self._tail = None
        numbered = self._numbered(chunk)
        if chunk.position is not None:
            self._write(numbered.slice(0, chunk.complete))
            self._tail = numbered.slice(chunk.complete) if chunk.complete < numbered.num_rows else None
            self._position = chunk.position
        else:
            self._write(numbered)

    def commit(self) -> LogCommit | None:
        """Makes everything up to the last whole transaction visible; returns None if there is nothing.

        Raises:
            OvertakenError: another process has captured in the meantime.
        """
        if self._position is None:
            return None
        reach("log.relations")
        record_layouts(self._relations, self._new)
        added = self._part.close() if self._part else None
        number = ChangeNumber(self._number - (self._tail.num_rows if self._tail is not None else 0))
        padded = self._position.ljust(21, b"\0")
        words = {w: int.from_bytes(padded[k * 7 : k * 7 + 7], "big") for k, w in enumerate(_WORDS)}
        reach("log.commit")
        progress, after = {**words, _NUMBER: number, _TIME: self._time}, {_NUMBER: self._reached}
        version = lake.commit(self._log, [added] if added else [], progress=progress, after=after)
        self._reached = number
        said = tuple(m for m in self._messages if m.number <= number)
        done = LogCommit(added.rows if added else 0, self._transactions, self._position, version, said)
        self._messages = self._messages[len(said) :]
        self.state = LogState(self._position, number, self._time)
        self._part, self._new, self._position = None, [], None
        self._transactions = self._bytes = 0
        return done

    def _write(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        if self._part is None:
            self._part = lake.Part(self._log, SCHEMA, name="log")
        self._part.write(records)
        self._bytes += records.nbytes

    def _numbered(self, chunk: Chunk) -> pa.RecordBatch:
        records, n = chunk.records, chunk.records.num_rows
        kinds = records["RECID"].to_numpy()
        times = self._times(records["COMMIT_TIME"])
        numbers = np.arange(self._number + 1, self._number + n + 1, dtype=np.int64)
        digits = sequence.make_many(times, numbers)
        offsets = np.arange(0, (n + 1) * sequence.WIDTH, sequence.WIDTH, dtype=np.int32)
        seq = pa.Array.from_buffers(
            pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(digits.reshape(-1))]
        )
        self._layouts(chunk, records, seq)
        for k in np.flatnonzero(kinds == MESSAGE).tolist():
            address, data = records["LOGADDR"][k].as_py(), records["DATA"][k].as_py()
            self._messages.append(Message(ChangeNumber(int(numbers[k])), seq[k].as_py(), address, data))
        self._number += n
        self._transactions += int((kinds == COMMIT).sum())
        columns = {name: records[name] for name in records.schema.names}
        columns |= {"RECNAME": _recnames(kinds), "CHANGE_SEQ": seq}
        return pa.record_batch([columns[f.name] for f in SCHEMA], schema=SCHEMA)

    def _times(self, commit_time: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Returns the time part of each transaction's commit time; it never decreases."""
        if not len(commit_time):
            return np.empty(0, np.int64)
        micros = commit_time.cast(pa.int64()).to_numpy()
        starts = sequence.run_starts(micros)
        parts = sequence.time_parts(micros[starts])
        parts = np.maximum.accumulate(np.maximum(parts, self._time))
        self._time = int(parts[-1])
        return np.repeat(parts, sequence.run_lengths(starts, len(micros)))

    def _layouts(self, chunk: Chunk, records: pa.RecordBatch, seq: pa.Array) -> None:
        waiting = [(0, r) for r in self._waiting] + list(chunk.relations)
        self._waiting = []
        for index, relation in waiting:
            if index < records.num_rows:
                address = records["LOGADDR"][index].as_py()
                if self.announced.news(relation, address):
                    self._new.append(Layout(relation, address, seq[index].as_py()))
            else:
                self._waiting.append(relation)


def _recnames(kinds: np.ndarray[tuple[int], np.dtype[np.int32]]) -> pa.Array:
    places = np.searchsorted(_KINDS, kinds)
    if len(kinds) and (np.take(_KINDS, places, mode="clip") != kinds).any():
        odd = sorted(set(kinds.tolist()) - set(RECNAMES))
        raise FormatError(f"log records of unknown kind {odd}", hint="the source must declare its RECIDs")
    return _NAMES.take(pa.array(places))
