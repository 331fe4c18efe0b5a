"""What a live source is: log records in commit order, positions that compare, baselines at a known position.

A *position* is 20 bytes that compare in order (`bytes` comparison); everything with LOGADDR < position is
done. Sources import no pyspark: the capture process runs without a JVM. A new source is a new file that has
the methods of `LogSource`; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from ..model.change import Relation
from ..wire.records import Chunk


@dataclass(frozen=True)
class Snapshot:
    """A point at which all tables can be read. Changes with LOGADDR >= `position` are not in it.

    An open window has no name: tables are read as they are meanwhile, so that changes with LOGADDR >=
    `position` may be in the rows or not. All before it are."""

    name: str
    position: bytes


@dataclass(frozen=True)
class Lag:
    """How far behind the source the task is: bytes of log, seconds (0.0 when everything was read).

    Attributes:
        retained: bytes of log that the source keeps for the task; None: it cannot tell.
        left: bytes of log that may come before the source gives up what it keeps; None: it never does.
    """

    bytes: int
    seconds: float
    retained: int | None = None
    left: int | None = None


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        level: an error keeps the task from starting, a warning does not.
        what: what is the matter and what it means, one or two sentences.
        where: server, database, table, slot: whatever it is about.
        cure: SQL or a setting that cures it.
    """

    level: Literal["error", "warning"]
    what: str
    where: str
    cure: str


@dataclass(frozen=True)
class SourceObject:
    """Something that a source keeps for a task: `what` with its name, a `detail`, whether it is the task's
    own and may go, the `sql` that takes it away, and how many bytes of log it keeps."""

    what: str
    detail: str
    ours: bool
    sql: str
    retained: int | None = None


@dataclass(frozen=True)
class BaselinePart:
    """A piece of a table that one worker reads: pages `first` to `last` (exclusive; None: to the end) of the
    physical table `leaf` (quoted SQL name). `rows` is an estimate. Picklable."""

    leaf: str
    first: int
    last: int | None
    rows: int


class Renamed(NamedTuple):
    """A table that was renamed: its relation id, the name it is `known` by, the name it has `now`."""

    relid: int
    known: str
    now: str


class BadValue(NamedTuple):
    """A value that its column's lake type cannot hold: row of the batch, column, the source's text."""

    row: int
    column: str
    text: str


class BaselineBatch(NamedTuple):
    """Rows of a baseline, typed as the relation's columns say, and the values that would not fit.

    Values in `bad` are NULL in `batch`; the caller decides (on_bad_value).
    """

    batch: pa.RecordBatch
    bad: list[BadValue]


@runtime_checkable
class LogSource(Protocol):
    """A database whose changes can be captured. All errors are SourceError (PositionError when what the task
    needs is gone), with where and hint."""

    def check(
        self,
        tables: Sequence[str],
        after: bytes | None,
        stored: Mapping[str, Any] | None = None,
        *,
        settled: bool = True,
    ) -> list[Finding]:
        """Everything that would keep capture of these tables from working, each with its cure.

        `after` is the log's position and `stored` the identity the task was made with (None: a new task). An
        empty `begin` in it says that there is no stream of the task's yet: the next one is to be made.
        Without `settled` the task's own capture reads the stream, or is about to make another one: how it
        stands is no finding.
        """

    def identity(self) -> dict[str, str]:
        """Which server this is, what the task's stream is called there, and where it begins (`begin`, hex);
        the task stores it, `check` compares it."""

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """`schema.table` names that the patterns select, sorted; ConfigError for a name that is not there."""

    def names(self, relids: Sequence[int]) -> dict[int, str] | None:
        """`schema.table` as they are called now, by relation id; those that are gone are missing. None: this
        source cannot tell, and tables keep their ids for ever."""

    def called(self, renamed: Sequence[Renamed]) -> None:
        """Tables that are known by another name than they have now, or had when their changes were made. From
        now on known names are understood, and given, and settings for them hold; only `tables` and `names` go
        by the names of now."""

    def prepare(self, tables: Sequence[str], *, begin: bool = True) -> bool:
        """Makes at the source what capture needs and is not there yet; whether the stream begins anew.

        Without `begin` it may not: PositionError when it is gone, because changes are lost then.
        """

    def renew(self) -> None:
        """Gives up what the source keeps of the stream: the next `prepare` begins one at the log's end."""

    def kept(self, stored: Mapping[str, Any] | None) -> list[SourceObject]:
        """What the source keeps for the task; `stored` as for `check`."""

    def leave(self, stored: Mapping[str, Any] | None) -> None:
        """Takes away what of that is the task's own: it does not come back."""

    def withdraw(self, tables: Sequence[str]) -> None:
        """Changes of these tables are wanted no longer."""

    def lost(self, tables: Sequence[str]) -> list[str]:
        """Those of the tables that are there, but not in the stream, although `prepare` was told of them:
        dropped and made again. Empty before the first `prepare`."""

    @property
    def exact(self) -> bool:
        """Whether all that is read in a `snapshot` is as of its position."""

    def window(self, stopped: Callable[[], bool] = lambda: False) -> Snapshot:
        """An open window: rows read from now on have every change before its position, and every later one
        of a wanted table is in the stream. May wait until running transactions end, or `stopped` says so."""

    @property
    def slot_is_new(self) -> bool:
        """Whether `prepare` began the stream anew, and nobody has taken its snapshot yet."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """A snapshot all readers can share, from any process, until the context ends."""

    def start(self, after: bytes | None, known: Sequence[Relation]) -> None:
        """Begins reading after a position (None: where the source keeps its own); `known` layouts are not
        announced again."""

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """The next records: about `limit_bytes`, or what came in `wait_s` seconds; None when nothing did."""

    def heartbeat(self) -> None:
        """Keeps the connection alive when `read` is not called for more than some seconds."""

    def acknowledge(self, position: bytes) -> None:
        """Lets the source forget everything before a position: it is durable here."""

    def lag(self) -> Lag:
        """How far behind the source the acknowledged position is."""

    def relation(self, table: str) -> Relation:
        """The layout a table has now."""

    def parts(self, relation: Relation, rows_per_part: int) -> list[BaselinePart]:
        """The table cut into pieces of about that many rows; at least one."""

    def read_part(
        self, snapshot: Snapshot, relation: Relation, part: BaselinePart
    ) -> Iterator[BaselineBatch]:
        """The rows of one piece as of the snapshot; TableMovedError when the database cannot give them any
        more (truncated or rewritten since)."""

    def part_reader(self) -> Callable[[Snapshot, Relation, BaselinePart], Iterator[BaselineBatch]]:
        """`read_part` as a picklable function, for worker processes."""

    def mark(self, text: str) -> bytes:
        """Writes a record into the source's own log (RECID 100, one transaction); the position after it.

        UnsupportedError when the log takes none.
        """

    def end_position(self) -> bytes:
        """Where the source's log ends: all that was committed by now lies before it."""

    def reached(self) -> bytes | None:
        """The position before which everything has been read; None before anything is known."""

    def close(self) -> None:
        """Gives up all connections; what is kept at the source stays."""
