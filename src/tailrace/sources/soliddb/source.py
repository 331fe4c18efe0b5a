"""solidDB as a `LogSource`, by its log reader: `SELECT ... FROM SYS_LOG WHERE LOGADDR > ?`, an endless query.

Any DB-API driver works; the task names a function that opens a connection. Source: spec/soliddb.md §7, §9.
The parts are: `connect` (driver, nodes, errors), `catalog` (tables), `stream` and `records` (the log),
`baseline` (current tables).

solidDB has no marks in its log, no positions of readers, no primary keys in the catalog of columns (the
option `keys` declares them), and no shared snapshots (tables are locked for writers while they are read,
unless `lock: no`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, PositionError, TableMovedError, UnsupportedError
from ...formats.soliddb.options import SolidOptions
from ...model.change import Relation
from ...wire.records import Chunk
from ...wire.soliddb_address import behind, short
from ..base import (
    BaselineBatch,
    BaselinePart,
    ColumnStates,
    Finding,
    Lag,
    LeftOut,
    Partitions,
    Renamed,
    Snapshot,
    SourceObject,
)
from .baseline import SolidPartReader, lock, quoted
from .catalog import chosen, names, relation
from .connect import Connection, Server, asking, let_go
from .stream import SysLogStream, log_end

if TYPE_CHECKING:
    from ...config.task import Task


def from_task(task: Task) -> SolidSource:
    """Returns the source of a task file.

    Raises:
        ConfigError: baselines shall be exact, but tables shall not be locked.
    """
    from ... import formats

    given = task.source
    if task.baseline.window == "exact" and not given.lock:
        raise ConfigError(
            "without locks, tables are read while they are written to, so that no baseline is exact",
            where="baseline.window",
            hint="set `source.lock: true`, or `baseline.window: open`",
        )
    server = Server(
        given.connect, given.url.split("?")[0], given.arguments, tuple(given.nodes), tuple(given.statements)
    )
    options = formats.options(formats.get("soliddb"), dict(given.options))
    assert isinstance(options, SolidOptions)  # noqa: S101 - these are that format's options
    return SolidSource(server, options, types=task.types, fetch_rows=given.fetch_rows, locks=given.lock)


class SolidSource:
    """A solidDB server (or a pair) whose changes a task captures.

    Args:
        server: the server.
        options: row layout, encodings, keys and the policy for CAPTURE_OFF.
        types: Spark SQL types for the lake by `schema.table.column`, instead of the defaults.
        fetch_rows: rows fetched at once; more than 1 only with drivers that return the available rows.
        locks: whether tables are locked for writers while a baseline reads them.
    """

    def __init__(
        self,
        server: Server,
        options: SolidOptions | None = None,
        *,
        types: Mapping[str, str] | None = None,
        fetch_rows: int = 1,
        locks: bool = True,
    ) -> None:
        self.server, self.options = server, options or SolidOptions()
        self._types, self._locks = dict(types or {}), locks
        self._keys = self.options.key_columns()
        self._side: Connection | None = None
        self._lock = threading.RLock()
        self._ids: dict[str, int] = {}
        self._renamed: tuple[Renamed, ...] = ()
        self._begin: bytes | None = None
        self._least = b""  # where the stream begins: after LOG's end unless it is the first stream
        self._length: int = self.options.logaddr_bytes
        self._asked: tuple[float, bytes] | None = None
        self._stream = SysLogStream(
            server, self._announced, self.options.style(), self.options.capture_off, fetch_rows
        )

    def check(
        self,
        tables: Sequence[str],
        after: bytes | None,
        stored: Mapping[str, Any] | None = None,
        *,
        settled: bool = True,
    ) -> list[Finding]:
        """Returns everything that would prevent capture: the log cannot be read, or a key is not declared."""
        if stored and stored.get("begin") and settled:
            self._begin = self._least = bytes.fromhex(str(stored["begin"]))
        found = []
        if stored and str(stored.get("logaddr_bytes", "")) not in ("", str(self._log_end_length())):
            found.append(Finding(
                "error", "LOGADDR has another length than when the task began: another server or release",
                self.server.where, "start a new task with its own baseline",
            ))  # fmt: skip
        for table in tables:
            if table not in self._keys:
                what = "no key is declared: rows are identified by all columns"
                cure = f'source.options: {{keys: "{table}=COLUMN"}}'
                found.append(Finding("warning", what, table, cure, table))
        return found

    def offers(self, tables: Sequence[str]) -> list[Finding]:
        """Returns no offers."""
        return []

    def identity(self) -> dict[str, str]:
        """Returns the length of LOGADDR and the task's first position, for the next start."""
        self._begin = self._begin or self.end_position()
        return {"logaddr_bytes": str(self._log_end_length()), "begin": self._begin.hex().upper()}

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """Returns the sorted `schema.table` names selected by the patterns.

        Raises:
            ConfigError: an exact name does not exist.
        """
        with self._lock, asking(self.server.where):
            self._ids = self._known(found := names(self._session()))
        return chosen(list(found), patterns, exclude)

    def left_out(self) -> dict[str, LeftOut]:
        """Returns nothing: `tables` only has tables whose changes are in the log."""
        return {}

    def identify(self, tables: Sequence[str]) -> dict[str, str]:
        """Does nothing: the log has whole rows."""
        return {}

    def names(self, relids: Sequence[int]) -> dict[int, str]:
        """Returns current `schema.table` names by relation id, for existing tables."""
        with self._lock, asking(self.server.where):
            found = names(self._session())
        return {relid: table for table, relid in found.items() if relid in relids}

    def called(self, renamed: Sequence[Renamed]) -> None:
        """Sets tables that are known under another name than their current one."""
        self._renamed, self._ids = tuple(renamed), {}

    def prepare(self, tables: Sequence[str], *, begin: bool = True) -> bool:
        """Includes these tables in the stream; creates nothing at the source."""
        for table in tables:
            self._id(table)
        self._stream.want({self._ids[t]: t for t in tables})
        self._begin = self._begin or self.end_position()
        return False

    def renew(self) -> None:
        """Restarts at the end of the log."""
        self._begin = self._least = self.end_position()

    def kept(self, stored: Mapping[str, Any] | None) -> list[SourceObject]:
        """Returns nothing: the log belongs to the server."""
        return []

    def leave(self, stored: Mapping[str, Any] | None) -> None:
        """Does nothing: the source keeps no objects."""

    @property
    def unpublished(self) -> Mapping[str, str]:
        """Empty: reading the log needs no lock."""
        return {}

    def locked(self, tables: Sequence[str]) -> dict[str, str]:
        """Returns nothing: locks are unknown."""
        return {}

    def withdraw(self, tables: Sequence[str]) -> bool:
        """Removes tables from the stream."""
        self._stream.want({i: t for i, t in self._stream.tables.items() if t not in tables})
        return True

    def published(self, tables: Sequence[str]) -> dict[str, str] | None:
        """Returns the tables except those whose current id differs from the id by which their changes are
        read."""
        read = self._stream.tables
        return {t: "" for t in tables if t not in read.values() or self._id(t) in read}

    def partitions(
        self, tables: Sequence[str], known: Mapping[str, Collection[str]]
    ) -> dict[str, Partitions]:
        """Returns nothing: tables have no partitions."""
        return {}

    def column_states(
        self, tables: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, ColumnStates]:
        """Returns nothing: columns keep their types, and no type changes its text."""
        return {}

    def waits(self, report: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        """Does nothing: the server does not report lock holders."""

    def attached(self, tables: Sequence[str]) -> dict[str, str]:
        """Returns nothing: tables have no partitions."""
        return {}

    @property
    def exact(self) -> bool:
        """Whether tables are locked while they are read."""
        return self._locks

    def window(self, stopped: Callable[[], bool] = lambda: False) -> Snapshot:
        """Returns the end of the log."""
        return Snapshot("", self.end_position())

    @property
    def slot_is_new(self) -> bool:
        """False: solidDB keeps no positions of readers."""
        return False

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Yields the end of the log while the wanted tables are locked for writers."""
        with asking(self.server.where):
            holder = self.server.open()
        try:
            with asking(self.server.where):
                if self._locks:
                    lock(holder, sorted(map(self._now, self._stream.wanted)))
                position = behind(short(log_end(holder)))
            yield Snapshot("", position)
        finally:
            with suppress(Exception):  # a lost connection holds no locks either
                holder.rollback()
            let_go(holder)

    @contextmanager
    def resent(self, upto: bytes, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Yields None: solidDB does not keep acknowledgements."""
        yield None

    def start(self, after: bytes | None, known: Sequence[Relation]) -> None:
        """Starts reading after a position, or at the stream's beginning if that is later.

        Raises:
            PositionError: the log does not exist there.
        """
        begin = max(after or b"", self._least) or self._begin
        if begin is None:
            raise PositionError(
                "the task's starting point is unknown",
                where=self.server.where,
                hint="call prepare before start",
            )
        self._stream.start(begin, self._log_end_length(), known)

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """Returns the next records: about `limit_bytes`, or those that arrived within `wait_s` seconds; None
        if none did."""
        return self._stream.read(limit_bytes, wait_s)

    def heartbeat(self) -> None:
        """Does nothing: an unread cursor keeps its position, up to MaxQueueLen."""

    def acknowledge(self, position: bytes) -> None:
        """Does nothing: the server keeps LogReader.MaxLogSize of log, read or not."""

    def lag(self) -> Lag:
        """Returns 0 bytes, because positions do not count bytes, and the seconds since everything
        was read."""
        if not self._stream.idle_at:
            return Lag(0, 0.0)
        behind_s = time.monotonic() - self._stream.idle_at
        return Lag(0, behind_s if behind_s > 2.0 else 0.0)

    def columns(self, tables: Sequence[str]) -> dict[str, list[str]]:
        """Returns the column names of tables."""
        there = set(self.tables(["*"]))
        return {t: [c.name for c in self.relation(t).columns] for t in tables if self._now(t) in there}

    def relation(self, table: str) -> Relation:
        """Returns the current layout of a table; its key is set by the option `keys`."""
        with self._lock, asking(self.server.where):
            return relation(self._session(), table, self._id(table), self._keys, self._types)

    def parts(self, relation: Relation, rows_per_part: int) -> list[BaselinePart]:
        """Returns the whole table as one part."""
        return [BaselinePart(quoted(self._now(relation.table)), 0, None, 0)]

    def read_part(
        self, snapshot: Snapshot, relation: Relation, part: BaselinePart
    ) -> Iterator[BaselineBatch]:
        """Yields the rows of a table in the snapshot."""
        return self.part_reader()(snapshot, relation, part)

    def readers(self, wanted: int) -> tuple[int, str]:
        """Returns all readers: the limit of connections is unknown."""
        return wanted, ""

    def part_reader(self) -> SolidPartReader:
        """Returns `read_part` as a picklable function for worker processes."""
        return SolidPartReader(self.server)

    def mark(self, text: str) -> bytes:
        """Raises UnsupportedError: the log does not accept messages."""
        raise UnsupportedError("solidDB's log does not accept messages", where=self.server.where)

    def end_position(self) -> bytes:
        """Returns the end of the server's log: everything committed by now is before it."""
        with self._lock, asking(self.server.where):
            end = log_end(self._session())
        self._length = self._length or len(end)
        self._asked = (time.monotonic(), behind(short(end)))
        return self._asked[1]

    def reached(self) -> bytes | None:
        """Returns the position up to which everything was read: at least the requested end, once a later
        fetch found nothing."""
        seen = self._stream.seen
        if self._asked and seen and self._stream.idle_at > self._asked[0]:
            return max(seen, self._asked[1])
        return seen

    def close(self) -> None:
        """Closes all connections."""
        self._stream.close()
        let_go(self._side)
        self._side = None

    def _log_end_length(self) -> int:
        if not self._length:
            self.end_position()
        return self._length

    def _id(self, table: str) -> int:
        if table not in self._ids:
            with self._lock, asking(self.server.where):
                self._ids = self._known(names(self._session()))
        if table not in self._ids:
            where, hint = self.server.where, "it was dropped or renamed"
            raise TableMovedError(f"there is no table {table}", where=where, hint=hint)
        return self._ids[table]

    def _announced(self, relid: int) -> Relation:
        """Returns a table's current layout; without columns if it was dropped since."""
        with self._lock, asking(self.server.where):
            self._ids = self._known(names(self._session()))
        table = next((t for t, i in self._ids.items() if i == relid), None)
        return Relation(relid, "", "", "f", ()) if table is None else self.relation(table)

    def _known(self, ids: Mapping[str, int]) -> dict[str, int]:
        """Returns ids by the names under which tables are known."""
        known = {one.relid: one.known for one in self._renamed}
        return {known.get(relid, name): relid for name, relid in ids.items()}

    def _now(self, table: str) -> str:
        return next((one.now for one in self._renamed if one.known == table), table)

    def _session(self) -> Connection:
        with self._lock:  # baselines call this from their own thread
            if self._side is None:
                self._side = self.server.open()
            return self._side
