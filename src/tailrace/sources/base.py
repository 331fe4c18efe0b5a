"""The contract of a live source: log records in commit order, comparable positions, baselines at a known
position.

A *position* is 20 bytes that compare in order (`bytes` comparison); everything with LOGADDR < position is
done. Sources import no pyspark: the capture process runs without a JVM. A new source is a new file that has
the methods of `LogSource`; nothing else changes.
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
"""Comes before the table's id in the text that tells how it is in the stream, see `LogSource.published`."""


@dataclass(frozen=True)
class Snapshot:
    """A point in the log as of which all tables can be read. Changes with LOGADDR >= `position` are not in
    it.

    An open window has no name: tables are read as they are meanwhile, so that changes with LOGADDR >=
    `position` may be in the rows or not. All before it are."""

    name: str
    position: bytes


@dataclass(frozen=True)
class Lag:
    """How far behind the source the task is: bytes of log, and seconds (0.0 if everything was read).

    Attributes:
        retained: bytes of log that the source keeps for the task; None: it cannot tell.
        left: bytes of log that may come before the source gives up what it keeps; None: it never does.
    """

    bytes: int
    seconds: float
    retained: int | None = None
    left: int | None = None


@dataclass(frozen=True)
class Resent:
    """What a source sends again of its log, up to a position that LOG has reached.

    Attributes:
        begin: the position it begins at.
        end: the position that LOG has reached, as the source counts.
        chunks: the records from there to that position, and maybe some behind it.
        where: the server, for messages.
    """

    begin: bytes
    end: bytes
    chunks: Iterator[Chunk]
    where: str


SET_BACK = "the server was restored from a backup, or a standby was promoted that had not received everything"
NEW_TASK = "start a new task, with its own home and targets: positions of this one mean nothing here"
"""What is the matter, and what helps, if a server's log is not the one that a task has read."""

NO_COLUMNS = "it has no column that is captured: a target could not keep its rows"
OR_LEAVE_OUT = "or leave the table out (`source: {exclude: [%s]}`)"
"""What is the matter with a table without columns, or with generated ones alone, and one way out."""


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        level: an error keeps the task from starting, or the `table` from being applied; a warning does not; a
            note is an offer, or good to know.
        what: what is the matter and what it means, one or two sentences.
        where: server, database, table, slot: whatever it is about.
        cure: SQL or a setting that cures it.
        table: the table that it concerns alone; None: it concerns the task.
    """

    level: Literal["error", "warning", "note"]
    what: str
    where: str
    cure: str
    table: str | None = None

    @property
    def rank(self) -> int:
        """Errors first, notes last."""
        return ("error", "warning", "note").index(self.level)


class PassingFinding(Finding):
    """A finding that may pass by itself: a task that has a stream waits for that."""


@dataclass(frozen=True)
class SourceObject:
    """Something that a source keeps for a task: `what` with its name, a `detail`, whether it belongs to the
    task and may be removed, the `sql` that removes it, and how many bytes of log it retains."""

    what: str
    detail: str
    ours: bool
    sql: str
    retained: int | None = None


@dataclass(frozen=True)
class BaselinePart:
    """A piece of a table that one worker reads: pages `first` to `last` (exclusive; None: to the end) of the
    physical table `leaf` (quoted SQL name). `rows` is an estimate; `only`: SQL condition on the rows that the
    source sends. Picklable."""

    leaf: str
    first: int
    last: int | None
    rows: int
    only: str = "true"


class LeftOut(NamedTuple):
    """What no wildcard selects: `why` ("a view"), what helps (`cure`), whether a replica `identity` is all
    that it has not, and the statement that gives it one if that needs its owner (`by_owner`)."""

    why: str
    cure: str
    identity: bool = False
    by_owner: str = ""


class Partitions(NamedTuple):
    """The partitions of a table, on all levels: names by a key that another attachment of the same partition
    does not have; those that are new and came with rows that are not in the stream (`filled`), and those of
    which nobody may look whether they did (`unsure`); and why changes of some do not say which row they
    change (`unidentified`; empty: those of all do); and those that are foreign tables (`foreign`)."""

    there: Mapping[str, str]
    filled: Sequence[str] = ()
    unsure: Sequence[str] = ()
    unidentified: str = ""
    foreign: Sequence[str] = ()


FOREIGN_PARTITIONS = (
    "foreign tables are partitions of it ({}), and their rows are in no baseline and in no change"
)


class ColumnChange(NamedTuple):
    """A column whose older rows changed without a record in the log: its name, `why` they have changed, and
    whether the target's rows are `stale`: others than the source's, or not found again by their key."""

    column: str
    why: str
    stale: bool


class ColumnStates(NamedTuple):
    """The state of a table's columns at a moment, for the next look (JSON), and what has changed since the
    known one."""

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
        """Everything that would keep capture of these tables from working; each finding says how to fix it.

        `after` is the log's position and `stored` the identity the task was made with (None: a new task). An
        empty `begin` in it says that there is no stream of the task's yet: the next one is to be made.
        Without `settled` the task's own capture reads the stream, or is about to make another one: how it
        stands is no finding.
        """

    def offers(self, tables: Sequence[str]) -> list[Finding]:
        """What the source could send more of these tables, and what that costs (notes)."""

    def identity(self) -> dict[str, str]:
        """Identifies the server, the task's stream there, and its beginning (`begin`, hex); the task stores
        it, `check` compares it."""

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """`schema.table` names selected by the patterns, sorted; ConfigError for a name that does not
        exist."""

    def left_out(self) -> Mapping[str, LeftOut]:
        """What no wildcard should select, by its current name: what has no changes in the log, and tables
        that an application could not change any more once they are in the stream."""

    def identify(self, tables: Sequence[str]) -> Mapping[str, str]:
        """Gives tables, and their partitions, a replica identity of all columns where they have another one;
        returns those to which it could not be given, and why."""

    def names(self, relids: Sequence[int]) -> dict[int, str] | None:
        """Current `schema.table` names by relation id; tables that are gone are missing. None: this source
        cannot tell, and tables keep their ids for ever."""

    def called(self, renamed: Sequence[Renamed]) -> None:
        """Tables that are known under another name than the one they have now, or had when their changes
        were made. From now on, known names are accepted and returned, and settings for them apply; only
        `tables` and `names` use current names."""

    def prepare(self, tables: Sequence[str], *, begin: bool = True) -> bool:
        """Creates at the source what capture needs and what is missing, all but what is locked
        (`unpublished`); returns whether the stream is new.

        Without `begin` it may not: PositionError when it is gone, because changes are lost then.
        """

    def renew(self) -> None:
        """Gives up what the source keeps for the stream: the next `prepare` begins one at the log's end."""

    def kept(self, stored: Mapping[str, Any] | None) -> list[SourceObject]:
        """What the source keeps for the task; `stored` as for `check`."""

    def leave(self, stored: Mapping[str, Any] | None) -> None:
        """Removes those things that belong to the task, for good."""

    @property
    def unpublished(self) -> Mapping[str, str]:
        """The tables that the last `prepare` left out of the stream because they are locked, and by whom."""

    def locked(self, tables: Sequence[str]) -> Mapping[str, str]:
        """Those of the tables that cannot be read because they are locked, and by whom; asks for no lock."""

    def withdraw(self, tables: Sequence[str]) -> bool:
        """Changes of these tables are no longer wanted. Returns False if some have to stay in the stream for
        now, because they are locked."""

    def published(self, tables: Sequence[str]) -> dict[str, str] | None:
        """Those of the tables that are in the stream, and a text that tells how: another one later means that
        somebody else has altered it meanwhile, and that changes may be missing. A table that was dropped and
        created again is not in it, or its text has something else after `OF_TABLE`. None before the first
        `prepare`.

        Raises:
            SourceError: kinds of changes are left out.
        """

    def partitions(
        self, tables: Sequence[str], known: Mapping[str, Collection[str]]
    ) -> Mapping[str, Partitions]:
        """The partitions of those of the tables that have some, or could; new are those whose keys are not
        among the `known` ones of their table, none if it is not in there."""

    def column_states(
        self, tables: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> Mapping[str, ColumnStates]:
        """Those of the tables whose columns are in another state than the `known` one; all that have none."""

    def waits(self, told: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        """Whom to tell what a new stream, a snapshot or a window waits for at the source: in words, and
        nothing once it waits no more, from any thread. When `stopped` returns True a new stream and a
        snapshot end with ConnectionLostError, if they can."""

    def attached(self, tables: Sequence[str]) -> Mapping[str, str]:
        """Those of the tables that are partitions of another table in the stream, and that table: their
        changes come under its name."""

    @property
    def exact(self) -> bool:
        """Whether everything read in a `snapshot` is as of its position."""

    def window(self, stopped: Callable[[], bool] = lambda: False) -> Snapshot:
        """An open window: rows read from now on contain every change before its position, and every later
        change of a wanted table is in the stream. May wait until running transactions end, or until
        `stopped` returns True."""

    @property
    def slot_is_new(self) -> bool:
        """Whether `prepare` created the stream, and its snapshot has not been used yet."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """A snapshot that all readers can share, from any process, until the context ends."""

    def resent(
        self, upto: bytes, stopped: Callable[[], bool] = lambda: False
    ) -> AbstractContextManager[Resent | None]:
        """What the source would send again of the log before a position, read without acknowledging it:
        transactions that nobody acknowledged, as far as it knows. None: nothing, or it does not keep what
        was acknowledged. Ends early once `stopped` returns True."""

    def start(self, after: bytes | None, known: Sequence[Relation]) -> None:
        """Begins reading after a position (None: the source's own position); `known`: the newest layouts,
        by which columns keep their numbers."""

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """The next records: about `limit_bytes`, or what arrived within `wait_s` seconds; None if nothing
        did."""

    def heartbeat(self) -> None:
        """Keeps the connection alive when `read` is not called for more than some seconds."""

    def acknowledge(self, position: bytes) -> None:
        """Lets the source discard everything before a position: it is durable in LOG."""

    def lag(self) -> Lag:
        """How far behind the source the acknowledged position is."""

    def columns(self, tables: Sequence[str]) -> dict[str, list[str]]:
        """The names of the columns of tables, looked up at once: those of `relation`, and maybe others.
        Tables that are gone are missing."""

    def relation(self, table: str) -> Relation:
        """The current layout of a table; TableMovedError if it is gone."""

    def parts(self, relation: Relation, rows_per_part: int) -> list[BaselinePart]:
        """The table divided into pieces of about that many rows; at least one."""

    def read_part(
        self, snapshot: Snapshot, relation: Relation, part: BaselinePart
    ) -> Iterator[BaselineBatch]:
        """The rows of one piece as of the snapshot; TableMovedError if the database can no longer provide
        them (truncated or rewritten since)."""

    def readers(self, wanted: int) -> tuple[int, str]:
        """How many of so many readers of a baseline the source has connections for now, and why not for all
        (empty: for all)."""

    def part_reader(self) -> Callable[[Snapshot, Relation, BaselinePart], Iterator[BaselineBatch]]:
        """`read_part` as a picklable function, for worker processes."""

    def mark(self, text: str) -> bytes:
        """Writes a record into the source's own log (RECID 100, one transaction); returns the position after
        it.

        UnsupportedError when the log takes none.
        """

    def end_position(self) -> bytes:
        """Where the source's log ends: everything committed by now is before it."""

    def reached(self) -> bytes | None:
        """The position before which everything has been read; None before anything is known."""

    def close(self) -> None:
        """Closes all connections; what is kept at the source stays."""
