"""Checks whether the source's log is still the one that LOG was read from.

A server that is restored from a copy of its disk assigns the same positions to other changes. If capture
continued, targets would have changes that the server never had, and miss others. But the restored server has
neither the later changes nor the later acknowledgements. So it sends the transactions from that point on
again, as after a crash, and they differ. Therefore all transactions that a source sends again are compared
with LOG: position, number and commit time (to the microsecond).

LOG's newest file is never removed (`operate.retention`). So LOG either has a transaction that the source has
to send again, and that another server cannot have, or it has none of those that are sent.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import PositionError
from ..lake import delta as lake
from ..sources.base import NEW_TASK, SET_BACK, LogSource
from ..store.kept import kept
from ..store.log_files import LogFiles
from ..wire.records import RECORDS, TRX_START
from .baselines import Stopped

logger = logging.getLogger("tailrace.capture")
_TRANSACTION = ["LOGADDR", "TRXID", "COMMIT_TIME"]
_SCHEMA = pa.schema([RECORDS.field(name) for name in _TRANSACTION])
_BATCH_ROWS = 64 * 1024


def check_stream(source: LogSource, log: str, upto: bytes | None, stopped: Callable[[], bool]) -> None:
    """Compares the transactions that the source sends again, up to LOG's position, with LOG.

    Raises:
        PositionError: they differ.
        Stopped: `stopped` returned True first.
    """
    if upto is None:
        return
    with source.resent(upto, stopped) as again:
        if again is None:
            return
        upto = again.end
        logger.info("comparing what the source sends again with LOG")
        logged, sent = LoggedTransactions(log, again.begin), _SCHEMA.empty_table()
        for chunk in again.chunks:
            sent = pa.concat_tables([sent, _begun(chunk.records)])
            if chunk.position is not None:
                sent = _compared(logged, sent, min(chunk.position, upto), again.where)
        if stopped():
            raise Stopped
        _compared(logged, sent, upto, again.where)


class LoggedTransactions:
    """LOG's transactions from a position on, in order.

    Attributes:
        complete: the position from which on LOG has all transactions; older ones may have been removed.
    """

    def __init__(self, log: str, begin: bytes) -> None:
        self._fs, self._folder = lake.filesystem(log)
        paths = [file.path for file in LogFiles(log, -1).batch(-1, sys.maxsize)]
        self.complete = b""
        if kept(log) is not None:  # read after the list, so that files removed in between count as removed
            self.complete = self._first(paths[0]) if paths else b"\xff"
        start = max(len(paths) - 1, 0)
        while start and self._first(paths[start]) >= begin:
            start -= 1
        self._begin, self._batches = begin, self._read(paths[start:])
        self._held = _SCHEMA.empty_table()

    def before(self, position: bytes) -> pa.Table:
        """Returns the next transactions before a position."""
        while not self._held.num_rows or self._held["LOGADDR"][-1].as_py() < position:
            if (more := next(self._batches, None)) is None:
                break
            self._held = pa.concat_tables([self._held, more])
        found, self._held = _split(self._held, position)
        return found

    def _read(self, paths: list[str]) -> Iterator[pa.Table]:
        for path in paths:
            with self._open(path) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=["RECID", *_TRANSACTION]):
                    yield _split(_begun(batch), self._begin)[1]

    def _first(self, path: str) -> bytes:
        """Returns the position of a file's first record."""
        with self._open(path) as file:
            first: bytes = next(file.iter_batches(1, columns=["LOGADDR"]))["LOGADDR"][0].as_py()
        return first

    def _open(self, path: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._fs.open_input_file(f"{self._folder}/{path}"))


def _begun(records: pa.RecordBatch) -> pa.Table:
    """Returns the transactions that begin among records."""
    rows = pa.Table.from_batches([records.filter(pc.equal(records["RECID"], TRX_START))])
    return rows.select(_TRANSACTION).cast(_SCHEMA)


def _split(rows: pa.Table, position: bytes) -> tuple[pa.Table, pa.Table]:
    """Returns the transactions before a position, and the others."""
    count = pc.sum(pc.less(rows["LOGADDR"], pa.scalar(position, pa.binary()))).as_py() or 0
    return rows.slice(0, count), rows.slice(count)


def _compared(logged: LoggedTransactions, sent: pa.Table, upto: bytes, where: str) -> pa.Table:
    """Returns the sent transactions from a position on; raises PositionError if the earlier ones differ from
    LOG."""
    due, rest = _split(sent, upto)
    ours, theirs = logged.before(upto), _split(due, logged.complete)[1]
    if not ours.equals(theirs):
        raise PositionError(f"{_difference(ours, theirs)}: {SET_BACK}", where=where, hint=NEW_TASK)
    return rest


def _difference(ours: pa.Table, theirs: pa.Table) -> str:
    """Returns a message about the first transaction that only one of both has."""
    most = min(ours.num_rows, theirs.num_rows)
    same = [pc.equal(ours[name].slice(0, most), theirs[name].slice(0, most)) for name in _TRANSACTION]
    first = pc.index(pc.and_(pc.and_(*same[:2]), same[2]), False).as_py() if most else -1
    at = most if first < 0 else first
    mine, other = ours.slice(at, 1).to_pylist(), theirs.slice(at, 1).to_pylist()
    if mine and (not other or mine[0]["LOGADDR"] <= other[0]["LOGADDR"]):
        return f"{_named(mine[0])} was captured, and the server's log no longer has it"
    return f"{_named(other[0])} is in the server's log, and was not captured when the task read that part"


def _named(row: dict[str, object]) -> str:
    return f"transaction {row['TRXID']}, committed {row['COMMIT_TIME']},"
