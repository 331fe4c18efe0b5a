"""The replication stream: from psycopg's raw connection to chunks of log records.

The loop that receives messages limits capture's throughput, so it only appends. Everything else works on
whole chunks (`records`).
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.pq import ExecStatus

from ...errors import SourceError
from ...model.change import PARTLY, Relation
from ...wire.pgmessages import RelationMessage
from ...wire.pgoutput import EPOCH_US
from ...wire.records import Chunk
from .address import address
from .column_identity import Evidence, Moment
from .connect import (
    Session,
    asking,
    connect_when_free,
    failure,
    literal,
    lsn_of,
    lsn_text,
    position_at,
    quoted,
    refused,
)
from .records import EMPTY, HEADER, Built, RecordBuilder
from .slot import IN_USE, IN_USE_S

STATUS_S = 10.0
"""The maximum seconds between two status messages (less if wal_sender_timeout is short)."""
MOST_BYTES = 512 << 20
"""The maximum bytes of a chunk: Arrow's binary arrays end at 2 GiB, and one message may have 1 GiB."""
TCP_PAUSE_S, UNIX_PAUSE_S = 0.03, 0.0001
"""Seconds between two reads of a busy stream once it is empty.

The server sends every message separately. A reader that blocks pays a network round and a wake-up per
message, several times the cost of decoding; queued messages only cost a copy. A Unix socket holds a few
hundred messages, TCP megabytes.
"""
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")

Layouts = Callable[[RelationMessage, Moment, Relation | None], Relation]


class SlotStream:
    """Reads one slot from a position on.

    Args:
        url: the server.
        slot: replication slot (pgoutput).
        publication: its publication.
        layouts: returns the layout of a Relation message, given its time and the previous layout.
        idle_advance_s: the minimum seconds between position reports of an idle stream.
    """

    def __init__(
        self, url: str, slot: str, publication: str, layouts: Layouts, *, idle_advance_s: float = 10.0
    ) -> None:
        self.url, self.slot, self.publication = url, slot, publication
        self.layouts, self.idle_advance_s = layouts, idle_advance_s
        self.where = f"{address(url)}, slot {slot}"
        self._session: Session | None = None
        self.seen = self._flushed = 0

    def start(self, after: int | None, known: Sequence[Relation]) -> None:
        """Opens the stream after an LSN (None: the slot's position).

        Raises:
            PositionError: the slot or its log does not exist.
            SourceError: the slot is in use, or the server refuses.
        """
        self.close()
        session = connect_when_free(self.url, replication="database")
        self._session, self._pg = session, session.pgconn
        with asking(self.where):
            self._status_s = _status_interval(session)
        options = f"proto_version '1', publication_names {literal(quoted(self.publication))}, messages 'true'"
        begin = f"START_REPLICATION SLOT {quoted(self.slot)} LOGICAL {lsn_text(after or 0)} ({options})"
        self._begin(begin.encode())
        self._pg.nonblocking = 1
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._pause_s = TCP_PAUSE_S if self._pg.hostaddr else UNIX_PAUSE_S
        self._builder = RecordBuilder(after or 0)
        self._known = {relation.relid: relation for relation in known}
        self._waiting: list[tuple[int, RelationMessage]] = []  # announced, but no record of the table yet
        self._open: dict[int, RelationMessage] = {}  # layouts whose key is not proved yet
        self._leaves: dict[int, dict[int, str]] = {}  # replica identities of partitions by root
        self._flushed = self._read_to = self.seen = after or 0
        self._idle_at = time.monotonic()
        self._send_status()

    def _begin(self, command: bytes) -> None:
        """Sends the command that begins the stream."""
        end = time.monotonic() + IN_USE_S
        while True:
            with asking(self.where):
                result = self._pg.exec_(command)
            if result.status == ExecStatus.COPY_BOTH:
                return
            error = failure(self._pg, result)
            if error.sqlstate != IN_USE or time.monotonic() > end:
                raise refused(error, self.where, begins=True)
            time.sleep(0.05)

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """Returns the next chunk: about `limit_bytes`, or what arrives within `wait_s` seconds; None for
        nothing.

        Raises:
            SourceError: the stream broke; records that were not returned are sent again after a new `start`.
        """
        if self._session is None:
            raise SourceError("the stream is not started", where=self.where, hint="call start() first")
        try:
            parts = self._gather(min(limit_bytes, MOST_BYTES), time.monotonic() + wait_s)
        except psycopg.Error as error:
            self.close()
            raise refused(error, self.where) from error
        if time.monotonic() - self._status_at >= self._status_s:
            self._send_status()
        if not parts:
            return self._idle()
        built = self._builder.build(parts)
        self._waiting += built.relations
        relations = self._announce(built)
        if built.end is not None:
            self._read_to = max(self._read_to, built.end)
            self.seen = max(self.seen, built.end)
        if not built.records.num_rows and built.end is None:
            return None
        position = None if built.end is None else position_at(self._read_to)
        return Chunk(built.records, relations, built.complete, position)

    def _gather(self, limit: int, deadline: float) -> list[bytes]:
        parts: list[bytes] = []
        get, append, consume, left = self._pg.get_copy_data, parts.append, self._pg.consume_input, limit
        while True:
            before = left
            size, data = get(1)
            while size > HEADER:  # a keepalive has 18 bytes: longer ones are XLogData
                append(bytes(data))  # a copy, because keeping libpq's buffers alive costs more
                left -= size
                size, data = get(1)
            if size > 0:
                self._keepalive(data)
                continue
            if size < 0:
                self._ended()
            if left <= 0 or not self._wait(deadline, left < before):
                return parts
            consume()

    def _wait(self, deadline: float, busy: bool) -> bool:
        """Waits for the socket, or a moment if messages are arriving; False after the deadline."""
        while True:
            now = time.monotonic()
            due = self._status_at + self._status_s
            if now >= due:
                self._send_status()
                due = now + self._status_s
            if busy and now < deadline:
                if not self._poll.poll(0):
                    time.sleep(min(self._pause_s, deadline - now))
                return True
            if self._poll.poll(max(0.0, 1000 * (min(deadline, due) - now))):
                return now < deadline or not busy
            if now >= deadline:
                return False

    def _keepalive(self, data: bytes | memoryview) -> None:
        _, end, _, reply = _KEEPALIVE.unpack(data)
        self.seen = max(self.seen, end)
        if reply:
            self._send_status()

    def _ended(self) -> None:
        error = failure(self._pg, self._pg.get_result())
        self.close()
        if not error.sqlstate:
            error = psycopg.OperationalError("the server ended the stream")
        raise refused(error, self.where)

    def _idle(self) -> Chunk | None:
        """Handles an idle stream. If the server is ahead, everything before its position concerns other
        tables.

        The position may move there, so that the slot does not retain unneeded log.
        """
        now = time.monotonic()
        if self._builder.open or self.seen <= self._read_to or now - self._idle_at < self.idle_advance_s:
            return None
        self._idle_at, self._read_to = now, self.seen
        return Chunk(EMPTY, [], 0, position_at(self.seen))

    def _announce(self, built: Built) -> list[tuple[int, Relation]]:
        """Returns the announced layouts of tables that have records."""
        relids = built.records.column("RELID").to_numpy()
        found = self._with_records(relids)
        new = [(index, self._layout(message, built, record)) for index, message, record in found]
        announced = {relation.relid for _, relation in new}
        for relid, message in [*self._open.items()]:
            mine = np.flatnonzero(relids == relid)
            if relid not in announced and len(mine):
                new.append((int(mine[0]), self._layout(message, built, int(mine[0]))))
        return new

    def _with_records(self, relids: npt.NDArray[np.int64]) -> list[tuple[int, RelationMessage, int]]:
        """Returns the announced tables that have records, each with the first one; the others wait for
        theirs.

        A leaf partition is announced directly after its root, and its records have the root's relid. If its
        replica identity is not FULL, its old rows are incomplete, whatever the root's message says.
        """
        found: list[tuple[int, RelationMessage, int]] = []
        waiting: list[tuple[int, RelationMessage]] = []
        root: RelationMessage | None = None
        for index, message in self._waiting:
            mine = np.flatnonzero(relids[index:] == message.relid)
            if len(mine):
                root = message
                found.append((index, self._as_sent(message), index + int(mine[0])))
            elif root is not None and found[-1][0] == index:
                self._leaves.setdefault(root.relid, {})[message.relid] = message.identity
                found[-1] = index, self._as_sent(root), found[-1][2]
                root = None
            else:
                waiting.append((0, message))
        self._waiting = waiting
        return found

    def _as_sent(self, message: RelationMessage) -> RelationMessage:
        """Returns the message with the identity that old rows of all partitions have."""
        leaves = self._leaves.get(message.relid, {}).values()
        partly = message.identity == "f" and any(identity != "f" for identity in leaves)
        return replace(message, identity=PARTLY) if partly else message

    def _layout(self, message: RelationMessage, built: Built, record: int) -> Relation:
        """Returns the layout of a record.

        If its key is not proved, it is determined again with the table's next records: a later observation of
        the catalog may prove it, and the server does not announce it again.
        """
        before, again = self._known.get(message.relid), self._open.pop(message.relid, None)
        relation = self.layouts(message, self._moment(built, record), before)
        if again is message and before and _numbers(relation) != _numbers(before):
            relation = before  # columns keep their numbers until they are announced again
        elif relation != before:
            self._known[message.relid] = relation
        if Evidence.parse(relation.evidence).key_open:
            self._open[message.relid] = message
        return relation

    def _moment(self, built: Built, record: int) -> Moment:
        """Returns the time of a record's change."""
        addresses = built.records.column("LOGADDR")
        address = addresses[record].as_py()
        last = addresses[built.complete - 1].as_py() if built.complete > record else b""
        end = built.end if lsn_of(last) == lsn_of(address) else None
        return Moment(lsn_of(address), built.records.column("TRXID")[record].as_py(), address, end)

    def heartbeat(self) -> None:
        """Sends a keepalive to the server, if `read` is not called for some seconds."""
        if self._session is not None and time.monotonic() - self._status_at >= self._status_s / 2:
            self._send_status()

    def acknowledge(self, lsn: int) -> None:
        """Allows the server to discard the log before an LSN, which never decreases."""
        self._flushed = max(self._flushed, lsn)
        if self._session is not None:
            self._send_status()

    def _send_status(self, ask: bool = False) -> None:
        now = int(time.time() * 1_000_000) - EPOCH_US
        written = max(self._read_to, self._flushed)
        status = _STATUS.pack(b"r", written, self._flushed, self._flushed, now, ask)
        try:
            self._pg.put_copy_data(status)
            while self._pg.flush() == 1:
                select.select([], [self._pg.socket], [], 1.0)
                self._pg.consume_input()  # a server that is blocked on sending does not read
        except psycopg.Error as error:
            self.close()
            raise refused(error, self.where) from error
        self._status_at = time.monotonic()

    @property
    def flushed(self) -> int:
        """The acknowledged LSN."""
        return self._flushed

    @property
    def last_commit_us(self) -> int | None:
        """Commit time of the newest transaction read (Unix microseconds)."""
        return self._builder.last_commit_us

    @property
    def process(self) -> int | None:
        """The server process of the stream."""
        return None if self._session is None else self._session.info.backend_pid

    def ping(self) -> None:
        """Requests the server's position, at most ten times a second; the answer arrives with a
        later `read`."""
        if self._session is not None and time.monotonic() - self._status_at >= 0.1:
            self._send_status(ask=True)

    def close(self) -> None:
        """Closes the stream; the slot stays."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _numbers(relation: Relation) -> list[int]:
    return [c.attnum for c in relation.columns]


def _status_interval(session: Session) -> float:
    row = session.execute("show wal_sender_timeout").fetchone()
    amount = row[0] if row else "0"
    for unit, seconds in (("ms", 0.001), ("min", 60.0), ("s", 1.0), ("h", 3600.0), ("d", 86400.0)):
        if amount.endswith(unit):
            return min(STATUS_S, int(amount[: -len(unit)]) * seconds / 3)
    return STATUS_S  # 0: never times out


__all__ = ["Layouts", "SlotStream"]
