"""Reads the endless cursor over SYS_LOG as chunks of log records. Source: spec/soliddb.md §2, §3, §7.

Rows are received one by one and processed by column. An update's two rows become one record, and images
become pgoutput messages (LOG has one kind of image). Skipped are changes of other tables, DDL statements,
records of unpublished kinds (`skipped` counts them), and transactions with CAPTURE_OFF according to the
policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from ...errors import ConnectionLostError
from ...model.change import Relation
from ...wire.records import Chunk
from ...wire.soliddb import Style
from ...wire.soliddb_address import LENGTHS, long, record_before
from .connect import Connection, Cursor, Server, asking, let_go
from .records import SysLogBuilder

COLUMNS = ("RECID", "TRXID", "STMTTRXID", "RELID", "FLAGS", "LOGADDR", "DATA")
SELECT = f"SELECT {', '.join(COLUMNS)} FROM SYS_LOG WHERE LOGADDR > ?"
END = "SELECT LOGADDR FROM SYS_LOG LIMIT 1"
SHUTDOWN = 0x02
BEFORE = 5
Policy = Literal["skip-all", "skip-deletes", "keep"]


class SysLogStream:
    """Reads SYS_LOG from a position on, over a separate connection."""

    def __init__(
        self, server: Server, layout: Callable[[int], Relation], style: Style, policy: Policy, fetch_rows: int
    ) -> None:
        self._server, self._fetch_rows = server, fetch_rows
        self._builder = SysLogBuilder(layout, style, policy)
        self._connection: Connection | None = None
        self._cursor: Cursor | None = None
        self._held: list[Sequence[Any]] = []
        self._ending = False
        self.seen: bytes | None = None
        """The position after the last whole transaction read."""
        self.idle_at = 0.0
        """Time (monotonic clock) at which a fetch began that found nothing more."""

    @property
    def skipped(self) -> Mapping[int, int]:
        """The number of skipped records by unpublished RECID."""
        return self._builder.skipped

    def want(self, tables: Mapping[int, str]) -> None:
        """Sets the tables (by id) whose changes are wanted from now on."""
        self._builder.tables = dict(tables)

    @property
    def tables(self) -> Mapping[int, str]:
        """The tables whose changes are wanted, by id."""
        return self._builder.tables

    @property
    def wanted(self) -> list[str]:
        """The tables whose changes are wanted."""
        return list(self._builder.tables.values())

    def start(self, after: bytes, length: int, known: Sequence[Relation]) -> None:
        """Starts after a record; `known` layouts are not announced again.

        Raises:
            PositionError: the server no longer has the log there.
            ConnectionLostError: no node answers.
        """
        self.close()
        self._builder.known = {r.relid: r for r in known}
        self._builder.open = None
        self._held, self._ending, self.seen = [], False, after
        with asking(self._server.where):
            self._connection = self._server.open()
            self._cursor = self._connection.cursor()
            self._cursor.execute(SELECT, (long(record_before(after), length),))

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """Returns the next records, or None.

        A fetch may take a second: the server answers an idle one with an empty row.
        """
        if self._ending:
            raise ConnectionLostError("the server is shutting down", where=self._server.where)
        rows, size, deadline, idle = self._held, 0, time.monotonic() + wait_s, False
        while size < limit_bytes and not idle and not self._ending:
            began = time.monotonic()
            came = self._fetch()
            full = [r for r in came if r[5] is not None]
            idle = len(full) < len(came)
            self._ending = any(r[4] and r[4] & SHUTDOWN for r in came)
            rows += full
            size += sum(64 + len(r[6] or b"") for r in full)
            if idle:
                self.idle_at = began
            if time.monotonic() >= deadline:
                break
        # A before image waits for its after image.
        self._held = [rows.pop()] if rows and rows[-1][0] == BEFORE else []
        if not rows:
            return None
        chunk = self._builder.build(rows)
        self.seen = chunk.position or self.seen
        return chunk

    def _fetch(self) -> Sequence[Sequence[Any]]:
        if self._cursor is None:
            raise ConnectionLostError("the stream is not open", where=self._server.where)
        with asking(self._server.where):
            if self._fetch_rows > 1:
                came = self._cursor.fetchmany(self._fetch_rows)
            else:
                one = self._cursor.fetchone()
                came = [] if one is None else [one]
        if not came:
            raise ConnectionLostError("the log's cursor ended", where=self._server.where)
        return came

    def close(self) -> None:
        """Closes the connection."""
        let_go(self._connection)
        self._connection = self._cursor = None


def log_end(connection: Connection) -> bytes:
    """Returns the newest LOGADDR of the server."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(END)
        row = cursor.fetchone()
    if row is None or row[0] is None:
        return bytes(LENGTHS[0])
    return bytes(row[0])
