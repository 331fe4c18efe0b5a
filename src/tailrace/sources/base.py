"""The contract of a live source: log records in commit order, comparable positions, baselines at a known
position.

A *position* is 20 bytes that compare in order (`bytes` comparison); everything with LOGADDR < position is
done. Sources do not import pyspark, because the capture process has no JVM. A new source is a package that
implements `LogSource`; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from ..model.change import Relation
from ..wire.records import Chunk

OF_TABLE = " table "
"""Text before the table's id in an entry of `LogSource.published`."""


@dataclass(frozen=True)
class Snapshot:
    """A position at which all tables can be read. Changes with LOGADDR >= `position` are not in it.

    An open window has no name: tables are read at their current state. Changes with LOGADDR >= `position` may
    be in the rows or not, and all earlier ones are.
    """

    name: str
    position: bytes


@dataclass(frozen=True)
class Lag:
    """Distance of the task from the source's end: bytes of log, and seconds (0.0 if everything was read).

    Attributes:
        retained: bytes of log that the source keeps for the task; None if unknown.
        left: bytes of log that can be written before the source discards what it keeps; None if it never
            does.
    """

    bytes: int
    seconds: float
    retained: int | None = None
    left: int | None = None


@dataclass(frozen=True)
class Resent:
    """Log that a source sends again, up to a position that LOG has reached.

    Attributes:
        begin: its first position.
        end: the position that LOG has reached, in the source's counting.
        chunks: the records between, and possibly some later ones.
        where: the server, for messages.
    """

    begin: bytes
    end: bytes
    chunks: Iterator[Chunk]
    where: str


SET_BACK = "the server was restored from a backup, or a standby was promoted that had not received everything"
NEW_TASK = "start a new task with its own home and targets: this task's positions are not valid here"
"""Message and hint for a server whose log is not the one that a task has read."""

NO_COLUMNS = "it has no column that is captured: a target could not store its rows"
OR_LEAVE_OUT = "or leave the table out (`source: {exclude: [%s]}`)"
"""Message and hint for a table without columns, or with generated columns only."""


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        level: an error prevents the task's start, or suspends its `table`; a warning does not; a note is an
            offer or information.
        what: the problem and its consequence, in one or two sentences.
        where: the affected server, database, table or slot.
        cure: SQL or a setting that fixes it.
        table: the only affected table; None if the task is affected.
    """

    level: Literal["error", "warning", "note"]
    what: str
    where: str
    cure: str
    table: str | None = None

    @property
    def rank(self) -> int:
        """The sort key: errors first, notes last."""
        return ("error", "warning", "note").index(self.level)


class PassingFinding(Finding):
    """A finding that may disappear by itself; a task that has a stream waits for that."""


@dataclass(frozen=True)
class SourceObject:
    """An object that a source keeps for a task.

    Attributes:
        what: type and name.
        detail: a description.
        ours: whether it belongs to the task and may be removed.
        sql: the statement that removes it.
        retained: the bytes of log that it retains.
    """

    what: str
    detail: str
    ours: bool
    sql: str
    retained: int | None = None


@dataclass(frozen=True)
class BaselinePart:
    """A part of a table that one worker reads: pages `first` to `last` (exclusive; None: to the end).
    Picklable.

    Attributes:
        leaf: the physical table (quoted SQL name).
        rows: the estimated number of rows.
        only: SQL condition on the rows that the source sends.
    """

    leaf: str
    first: int
    last: int | None
    rows: int
    only: str = "true"


class LeftOut(NamedTuple):
    """A relation that no wildcard selects.

    Attributes:
        why: the reason, e.g. "a view".
        cure: how to capture it.
        identity: whether it only needs a replica identity.
        by_owner: the statement that sets one, if that requires its owner.
    """

    why: str
    cure: str
    identity: bool = False
    by_owner: str = ""


class Partitions(NamedTuple):
    """The partitions of a table on all levels.

    Attributes:
        there: names by a key, which differs for each attachment of a partition.
        filled: new partitions that had rows which are not in the stream.
        unsure: new partitions for which the role may not check that.
        unidentified: why changes of some do not identify their row; empty if all do.
        foreign: those that are foreign tables.
    """

    there: Mapping[str, str]
    filled: Sequence[str] = ()
    unsure: Sequence[str] = ()
    unidentified: str = ""
    foreign: Sequence[str] = ()


FOREIGN_PARTITIONS = (
    "foreign tables are partitions of it ({}), and their rows are neither in the baseline nor in changes"
)


class ColumnChange(NamedTuple):
    """A column whose older rows changed without a log record.

    Attributes:
        column: its name.
        why: the reason.
        stale: whether the target's rows differ from the source's, or are no longer found by their key.
    """

    column: str
    why: str
    stale: bool


class ColumnStates(NamedTuple):
    """The current state of a table's columns for the next comparison (JSON), and the changes since the known
    one."""

    state: Mapping[str, Any]
    changed: Sequence[ColumnChange] = ()


class Renamed(NamedTuple):
    """A renamed table: its relation id, the name under which it is `known`, and its current name (`now`)."""

    relid: int
    known: str
    now: str


class BadValue(NamedTuple):
    """A value that its column's lake type cannot hold: row of the batch, column, the source's text."""

    row: int
    column: str
    text: str


class BaselineBatch(NamedTuple):
    """Rows of a baseline in the types of the relation's columns, and the values that did not fit.

    Values in `bad` are NULL in `batch`; the caller decides (on_bad_value).
    """

    batch: pa.RecordBatch
    bad: list[BadValue]


@runtime_checkable
class LogSource(Protocol):
    """A database whose changes can be captured.

    All errors are SourceError (PositionError if data that the task needs was removed), with where and hint.
    """

    def check(
        self,
        tables: Sequence[str],
        after: bytes | None,
        stored: Mapping[str, Any] | None = None,
        *,
        settled: bool = True,
    ) -> list[Finding]:
        """Returns everything that would prevent capture of these tables; each finding has a cure.

        Args:
            tables: the tables.
            after: LOG's position.
            stored: the identity with which the task was created (None: a new task). An empty `begin` in it
                means that the task's next stream is not created yet.
            settled: False while the task's capture reads the stream or is about to create another; then the
                stream's state is not checked.
        """

    def offers(self, tables: Sequence[str]) -> list[Finding]:
        """Returns notes about data that the source could send additionally for these tables, and its cost."""

    def identity(self) -> dict[str, str]:
        """Returns the identity of the server, of the task's stream there, and of its beginning (`begin`,
        hex).

        The task stores it, and `check` compares it.
        """

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """Returns the sorted `schema.table` names selected by the patterns.

        Raises:
            ConfigError: an exact name does not exist.
        """

    def left_out(self) -> Mapping[str, LeftOut]:
        """Returns the relations that no wildcard selects, by current name.

        These have no changes in the log, or applications could no longer change them once they are in the
        stream.
        """

    def identify(self, tables: Sequence[str]) -> Mapping[str, str]:
        """Sets a replica identity of all columns for tables and their partitions.

        Returns those for which this failed, with the reason.
        """

    def names(self, relids: Sequence[int]) -> dict[int, str] | None:
        """Returns current `schema.table` names by relation id, for existing tables.

        Returns None if this source does not know; then tables keep their ids forever.
        """

    def called(self, renamed: Sequence[Renamed]) -> None:
        """Sets tables that are known under another name than their current one, or the one at their changes.

        From now on, known names are accepted and returned, and settings for them apply. Only `tables` and
        `names` use current names.
        """

    def prepare(self, tables: Sequence[str], *, begin: bool = True) -> bool:
        """Creates the missing objects that capture needs at the source, except for locked tables
        (`unpublished`).

        Returns whether the stream is new.

        Raises:
            PositionError: the stream does not exist and `begin` is False, so changes are lost.
        """

    def renew(self) -> None:
        """Removes the stream; the next `prepare` creates one at the log's end."""

    def kept(self, stored: Mapping[str, Any] | None) -> list[SourceObject]:
        """Returns the objects that the source keeps for the task; `stored` as in `check`."""

    def leave(self, stored: Mapping[str, Any] | None) -> None:
        """Removes the objects that belong to the task."""

    @property
    def unpublished(self) -> Mapping[str, str]:
        """The tables that the last `prepare` did not publish because they were locked, with the
        lock holders."""

    def locked(self, tables: Sequence[str]) -> Mapping[str, str]:
        """Returns the tables that cannot be read because they are locked, with the lock holders; requests no
        lock."""

    def withdraw(self, tables: Sequence[str]) -> bool:
        """Removes tables from the stream. Returns False if some have to stay for now, because they are
        locked."""

    def published(self, tables: Sequence[str]) -> dict[str, str] | None:
        """Returns the entries of the tables in the stream, or None before the first `prepare`.

        A different entry later means that the stream was altered by others, so that changes may be missing. A
        table that was dropped and created again is missing, or its entry differs after `OF_TABLE`.

        Raises:
            SourceError: kinds of changes are not published.
        """

    def partitions(
        self, tables: Sequence[str], known: Mapping[str, Collection[str]]
    ) -> Mapping[str, Partitions]:
        """Returns the partitions of those tables that have or could have some.

        New ones are those whose keys are not `known` for their table; a table that is not in `known` has no
        new ones.
        """

    def column_states(
        self, tables: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> Mapping[str, ColumnStates]:
        """Returns the tables whose columns differ from the `known` state, and all tables without one."""

    def waits(self, report: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        """Sets callbacks for waiting at the source.

        Args:
            report: called from any thread with the reason while a new stream, a snapshot or a window waits,
                and with an empty text afterwards.
            stopped: if it returns True, a new stream and a snapshot end with ConnectionLostError, if
                possible.
        """

    def attached(self, tables: Sequence[str]) -> Mapping[str, str]:
        """Returns the tables that are partitions of another table in the stream, with that table, whose name
        their changes have."""

    @property
    def exact(self) -> bool:
        """Whether all rows read in a `snapshot` are from its position."""

    def window(self, stopped: Callable[[], bool] = lambda: False) -> Snapshot:
        """Opens a window: rows read from now on include all changes before its position.

        Later changes of wanted tables are in the stream. May wait until running transactions end, or
        `stopped` returns True.
        """

    @property
    def slot_is_new(self) -> bool:
        """Whether `prepare` created the stream, and its snapshot was not used yet."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Returns a context with a snapshot that readers in all processes can share."""

    def resent(
        self, upto: bytes, stopped: Callable[[], bool] = lambda: False
    ) -> AbstractContextManager[Resent | None]:
        """Returns a context with the log that the source would send again before a position, without
        acknowledging it.

        These are transactions that were not acknowledged, as far as the source knows. None without such
        transactions, or if the source does not keep acknowledgements. Ends early once `stopped` returns True.
        """

    def start(self, after: bytes | None, known: Sequence[Relation]) -> None:
        """Starts reading after a position (None: the source's own).

        `known` are the newest layouts, by which columns keep their numbers.
        """

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """Returns the next records: about `limit_bytes`, or those that arrived within `wait_s` seconds; None
        if none did."""

    def heartbeat(self) -> None:
        """Keeps the connection alive if `read` is not called for some seconds."""

    def acknowledge(self, position: bytes) -> None:
        """Allows the source to discard everything before a position, because it is durable in LOG."""

    def lag(self) -> Lag:
        """Returns the distance of the acknowledged position from the source's end."""

    def columns(self, tables: Sequence[str]) -> dict[str, list[str]]:
        """Returns the column names of existing tables: those of `relation`, and possibly others."""

    def relation(self, table: str) -> Relation:
        """Returns the current layout of a table.

        Raises:
            TableMovedError: the table does not exist.
        """

    def parts(self, relation: Relation, rows_per_part: int) -> list[BaselinePart]:
        """Returns parts of the table with about `rows_per_part` rows; at least one."""

    def read_part(
        self, snapshot: Snapshot, relation: Relation, part: BaselinePart
    ) -> Iterator[BaselineBatch]:
        """Yields the rows of a part in the snapshot.

        Raises:
            TableMovedError: the rows no longer exist, because the table was truncated or rewritten.
        """

    def readers(self, wanted: int) -> tuple[int, str]:
        """Returns how many of the `wanted` baseline readers can connect now, and the reason if not all can
        (else empty)."""

    def part_reader(self) -> Callable[[Snapshot, Relation, BaselinePart], Iterator[BaselineBatch]]:
        """Returns `read_part` as a picklable function for worker processes."""

    def mark(self, text: str) -> bytes:
        """Writes a record to the source's log (RECID 100, one transaction), and returns the position after
        it.

        Raises:
            UnsupportedError: the log does not accept records.
        """

    def end_position(self) -> bytes:
        """Returns the end of the source's log: everything committed by now is before it."""

    def reached(self) -> bytes | None:
        """Returns the position up to which everything was read; None if unknown."""

    def close(self) -> None:
        """Closes all connections; objects at the source are kept."""
