"""PostgreSQL 14 to 18 as a `LogSource`, by logical replication (pgoutput).

The parts are: `checks` (whether capture can work), `slot` (publication, slot), `snapshot`, `stream` (messages
to records), `catalog` and `layout` (layouts), `baseline` (tables in a snapshot).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg

from ...config import logs
from ...errors import ConfigError, PositionError, TableMovedError
from ...lake.failpoints import reach
from ...model.change import Relation
from ...state.streams import newest
from ...wire.pgmessages import RelationMessage
from ...wire.records import Chunk
from ..base import (
    BaselineBatch,
    BaselinePart,
    ColumnChange,
    ColumnStates,
    Finding,
    Lag,
    LeftOut,
    Partitions,
    Renamed,
    Resent,
    Snapshot,
    SourceObject,
)
from . import (
    baseline,
    catalog,
    checks,
    column_states,
    connection_limits,
    leaf_identities,
    locks,
    partitions,
    resent,
    table_checks,
    task_objects,
)
from . import slot as pg_slot
from . import snapshot as pg_snapshot
from . import unselected as not_selected
from .address import address
from .baseline import LOCKED
from .column_identity import Moment
from .connect import ANEW, Session, asking, connect, lsn_of, position_at, primary, quoted_table
from .stream import SlotStream
from .table_checks import Question
from .transaction_wait import Waits

if TYPE_CHECKING:
    from ...config.task import Task

LONG_S = 2.0
"""Seconds for which a table must be locked to be reported."""


def from_task(task: Task) -> PostgresSource:
    """Returns the source of a task file."""
    stream = newest(task)
    wanted, slot = task.source.slot, stream.identity.get("slot")
    if wanted and slot and wanted != slot:
        what = f"`source.slot` is {wanted}, but the task has the slot {slot}, which keeps its changes"
        hint = f"set `slot: {slot}`, or start a new task"
        raise ConfigError(what, where=task.name, hint=hint)
    return PostgresSource(
        task.source.url,
        task.name,
        types=task.types,
        idle_advance_s=task.capture.idle_advance,
        slot=slot or wanted,
        begun=stream.stream > 0,
        workers=task.baseline.workers if task.baseline.enabled else 0,
    )


class PostgresSource:
    """A PostgreSQL database whose changes a task captures.

    Args:
        url: `postgresql://user@host:port/database`.
        task: the task's name; new publications and slots are named `tailrace_<task>`.
        types: Spark SQL types for the lake by `schema.table.column`, instead of the defaults.
        idle_advance_s: the minimum seconds between advances of the slot on an idle stream.
        slot: the name of publication and slot; None for the task's.
        begun: whether the task has a stream; then a standby at the address is waited for.
        workers: the number of readers of a baseline, for `check`; 0 for none.
    """

    def __init__(
        self,
        url: str,
        task: str,
        *,
        types: Mapping[str, str] | None = None,
        idle_advance_s: float = 10.0,
        slot: str | None = None,
        begun: bool = False,
        workers: int = 0,
    ) -> None:
        self._workers = workers
        self.url, self.task, self.types = url, task, dict(types or {})
        self.slot = self.publication = slot or pg_slot.name_of(task)
        self.where = f"{address(url)}, task {task}"
        self._connect = primary if begun else connect
        self._renamed: tuple[Renamed, ...] = ()
        self._asked: dict[int, str] = {}  # names under which relations were requested
        self._waits = Waits(url)
        self._side: Session | None = None
        self._lock = threading.Lock()
        self._fresh: pg_snapshot.SlotSnapshot | None = None
        self._unpublished: Mapping[str, str] = {}
        self._lacking: set[str] | None = None  # tables that the publication did not have when it was read
        self._stream = SlotStream(
            url, self.slot, self.publication, self._announced, idle_advance_s=idle_advance_s
        )
        self._timeline = catalog.timeline(self._session, self.publication)
        self._probe: tuple[int, float] | None = None
        self._caught_up = 0.0

    def check(
        self,
        tables: Sequence[str],
        after: bytes | None,
        stored: Mapping[str, Any] | None = None,
        *,
        settled: bool = True,
    ) -> list[Finding]:
        """Returns everything that would prevent capture of these tables, with cures."""
        with asking(self.where):
            server = address(self.url)
            names = [self._now(t) for t in tables]
            begin = (stored or {}).get("begin")
            begun = begin != "" and (bool(stored) or after is not None)
            read_to = max(after or b"", bytes.fromhex(begin or "")) or None
            log_at = None if read_to is None else lsn_of(read_to)
            question = Question(
                self._session(),
                server,
                self.slot,
                self.publication,
                names,
                log_at,
                begun,
                settled,
                self._workers,
            )
            return checks.check(question, stored)

    def offers(self, tables: Sequence[str]) -> list[Finding]:
        """Offers before images for tables whose changes have none."""
        with asking(self.where):
            names = [self._now(t) for t in tables]
            return table_checks.offers(self._session(), address(self.url), names)

    def identity(self) -> dict[str, str]:
        """Returns `system_identifier`, `database`, `slot`, which give positions their meaning, and `begin`,
        the slot's position."""
        with asking(self.where):
            found = checks.identity(self._session(), self.slot)
            begin = pg_slot.begins(self._session(), self.slot)
        return found if begin is None else found | {"begin": position_at(begin).hex().upper()}

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """Returns the sorted `schema.table` names selected by the patterns.

        Raises:
            ConfigError: an exact name does not exist.
        """
        with asking(self.where):
            return catalog.tables(self._session(), patterns, exclude)

    def left_out(self) -> dict[str, LeftOut]:
        """Returns the relations that no wildcard selects, see `unselected`."""
        with asking(self.where):
            return not_selected.left_out(self._session())

    def identify(self, tables: Sequence[str]) -> dict[str, str]:
        """Sets REPLICA IDENTITY FULL for tables and their partitions; returns failures, with locks or owners
        as the reason."""
        waits: dict[str, str] = {}
        names = {self._now(t): t for t in tables}
        with asking(self.where):
            session = self._session()
            for table, relations in not_selected.not_full(session, list(names)).items():
                for one in relations:
                    sql = f"ALTER TABLE {one} REPLICA IDENTITY FULL"
                    try:
                        session.execute(sql.encode())
                    except psycopg.errors.LockNotAvailable:
                        waits[names[table]] = f"it {locks.locked_by(session, one, locks.ALTER)}"
                    except psycopg.errors.InsufficientPrivilege as error:
                        waits[names[table]] = f"{error.diag.message_primary}: {sql}"
                    else:
                        logs.event("%s has REPLICA IDENTITY FULL now (`identity: full`)", one)
        return waits

    def names(self, relids: Sequence[int]) -> dict[int, str]:
        """Returns current `schema.table` names by oid, for existing tables."""
        with asking(self.where):
            return catalog.names(self._session(), relids)

    def called(self, renamed: Sequence[Renamed]) -> None:
        """Sets tables that are known under another name than their current one."""
        self._renamed = tuple(renamed)

    def prepare(self, tables: Sequence[str], *, begin: bool = True) -> bool:
        """Creates publication and slot if they are missing; returns whether the slot is new.

        A new slot has a snapshot, which `snapshot()` returns if it is the next call.

        Raises:
            TableMovedError: a table was renamed, dropped or created again since tables were listed; then
                nothing is published.
            PositionError: the slot does not exist and `begin` is False, or its publication does not exist.
        """
        with asking(self.where):
            there = pg_slot.begins(self._session(), self.slot) is not None
            if not there and not begin:
                what = "the slot is gone: changes since then are lost"
                raise PositionError(what, where=f"{self.where}, slot {self.slot}", hint=ANEW)
            if there:
                self._still_published()  # it was created before the slot
            try:
                names = {self._now(t): t for t in tables}
                waits = pg_slot.publish(self._session(), self.publication, list(names), self._lacking)
                self._unpublished = {names[now]: why for now, why in waits.items()}
            except psycopg.errors.UndefinedTable as error:
                what = f"a table was renamed since its name was looked up: {error.diag.message_primary}"
                raise TableMovedError(what, where=self.where, hint="the name is looked up again") from error
            self._timeline.follow(catalog.oids(self._session(), [self._now(t) for t in tables]))
        if there:
            return False
        self._drop_fresh()
        self._fresh = pg_snapshot.SlotSnapshot(self.url, self.slot, self._waits, where=self.where)
        reach("capture.slot")
        return True

    def renew(self) -> None:
        """Drops the slot; the publication stays."""
        self.close()
        with asking(self.where):
            pg_slot.drop(self._session(), self.slot)

    def kept(self, stored: Mapping[str, Any] | None) -> list[SourceObject]:
        """Returns the slot and the publication, if they exist."""
        with asking(self.where):
            return task_objects.kept(self._session(), self.slot, self.publication, stored)

    def leave(self, stored: Mapping[str, Any] | None) -> None:
        """Drops the slot, and the publication if the role owns it."""
        self.close()
        with asking(self.where):
            task_objects.leave(self._session(), self.slot, self.publication, stored)

    @property
    def unpublished(self) -> Mapping[str, str]:
        """The tables that were locked when `prepare` tried to publish them."""
        return self._unpublished

    def locked(self, tables: Sequence[str]) -> dict[str, str]:
        """Returns the tables that have been locked for some seconds, so that they cannot be read."""
        sql = {t: quoted_table(self._now(t)) for t in tables}
        with asking(self.where):
            held = locks.holders(self._session(), sql, locks.READ)
        long = {
            t: [one for one in by if one.seconds is None or one.seconds > LONG_S] for t, by in held.items()
        }
        return {t: locks.said(by) for t, by in long.items() if by}

    def withdraw(self, tables: Sequence[str]) -> bool:
        """Removes tables from the publication."""
        with asking(self.where):
            now = [self._now(t) for t in tables]
            waits = pg_slot.withdraw(self._session(), self.publication, now)
        return not waits

    def published(self, tables: Sequence[str]) -> dict[str, str] | None:
        """Returns the entries of the tables in the publication, see `slot.entries`; a dropped table leaves
        it.

        From then on, `prepare` publishes only tables that are not in it.
        """
        with asking(self.where):
            there = pg_slot.entries(self._session(), self.publication)
        names = {t: self._now(t) for t in tables}
        self._lacking = None if there is None else {now for now in names.values() if now not in there}
        return None if there is None else {t: there[now] for t, now in names.items() if now in there}

    def partitions(
        self, tables: Sequence[str], known: Mapping[str, Collection[str]]
    ) -> dict[str, Partitions]:
        """Returns the partitions of partitioned tables, see `partitions.look` and
        `leaf_identities.unidentified`."""
        names = {t: self._now(t) for t in tables}
        with asking(self.where):
            found = partitions.look(self._session(), names, known)
            why = leaf_identities.unidentified(self._session(), {t: names[t] for t in found})
        return {t: one._replace(unidentified=why.get(t, "")) for t, one in found.items()}

    def column_states(
        self, tables: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, ColumnStates]:
        """Returns the columns of tables, see `column_states.look`; unpublished ones do not count."""
        found: dict[str, ColumnStates] = {}
        with asking(self.where):
            states = column_states.look(self._session(), {t: self._now(t) for t in tables}, known)
            for table, state in states.items():
                changes: list[ColumnChange] = []
                if table in known and [*column_states.changed(known[table], state, ())]:
                    with suppress(TableMovedError):
                        relation = self.relation(table)
                        names = [c.name for c in relation.columns]
                        every = column_states.changed(known[table], state, relation.key or names)
                        changes = [one for one in every if one.column in names]
                found[table] = ColumnStates(state, changes)
        return found

    def attached(self, tables: Sequence[str]) -> dict[str, str]:
        """Returns the tables whose changes are published under their root's name, with the root."""
        with asking(self.where):
            return partitions.attached(self._session(), self.publication, {t: self._now(t) for t in tables})

    def waits(self, report: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        """Sets callbacks for waiting for transactions, see `slot_wait.Waits`."""
        self._waits = Waits(self.url, report, stopped)

    @property
    def exact(self) -> bool:
        """True: snapshots are exported."""
        return True

    def window(self, stopped: Callable[[], bool] = lambda: False) -> Snapshot:
        """Returns the log's end after all transactions that may have written unpublished changes have ended.

        Transactions that committed before it are visible then. A commit's record is in the log before its
        rows are visible, long before if it waits for a synchronous standby.
        """
        self._drop_fresh()
        with asking(self.where):
            self._waits.until_ended(self._session(), stopped)
            position = self.end_position()
            self._waits.until_ended(self._session(), stopped)
        return Snapshot("", position)

    @property
    def slot_is_new(self) -> bool:
        """Whether `prepare` created the slot, and its snapshot was not used yet."""
        return self._fresh is not None

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Yields a snapshot for all readers, with the position at which the stream continues."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            with closing(fresh):
                yield fresh.snapshot
        else:
            with pg_snapshot.temporary_snapshot(self.url, self.slot, self._waits, self.where) as made:
                yield made

    @contextmanager
    def resent(self, upto: bytes, stopped: Callable[[], bool] = lambda: False) -> Iterator[Resent | None]:
        """Yields the log from the slot's position to `upto`, if the slot is before it; the slot does not
        move."""
        with asking(self.where):
            begin = pg_slot.begins(self._session(), self.slot)
        if begin is None or begin >= lsn_of(upto):
            yield None
            return
        with resent.stream(self._session(), self.url, self.slot, self.publication) as stream:
            with asking(self.where):  # again, because it does not move while the stream is open
                begin = pg_slot.begins(self._session(), self.slot) or 0
            end = min(lsn_of(upto), lsn_of(self.end_position()))
            yield Resent(position_at(begin), upto, resent.chunks(stream, end, stopped), stream.where)

    def start(self, after: bytes | None, known: Sequence[Relation]) -> None:
        """Starts reading after a position.

        Raises:
            PositionError: the slot or its log does not exist.
        """
        self._probe, self._caught_up = None, time.time()
        self._timeline.begin(known)
        self._stream.start(None if after is None else lsn_of(after), known)

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """Returns the next records: about `limit_bytes`, or those that arrived within `wait_s` seconds; None
        if none did."""
        with asking(self.where):
            self._timeline.look()
        chunk = self._stream.read(limit_bytes, wait_s)
        if chunk is not None and not chunk.records.num_rows:
            self._still_published()  # PostgreSQL 18 silently sends nothing if the publication was dropped
        return chunk

    def heartbeat(self) -> None:
        """Keeps the connection alive if `read` is not called for some seconds."""
        self._stream.heartbeat()

    def acknowledge(self, position: bytes) -> None:
        """Allows the server to discard the log before a position, because it is durable in LOG."""
        self._stream.acknowledge(lsn_of(position))

    def lag(self) -> Lag:
        """Returns the bytes of log between the server's end and the acknowledged position, and seconds.

        Seconds count since the newest transaction read, or since everything was last read, whichever is less.
        Requires a started stream.
        """
        with asking(self.where):
            end, retained, left = pg_slot.retained(self._session(), self.slot)
        now, seen = time.time(), self._stream.seen
        if seen >= end:
            self._caught_up = now
        elif self._probe and seen >= self._probe[0]:
            self._caught_up = max(self._caught_up, self._probe[1])
        self._probe = end, now
        self._stream.ping()
        since = max(self._caught_up, (self._stream.last_commit_us or 0) / 1e6)
        seconds = 0.0 if seen >= end else max(0.0, now - since)
        return Lag(max(0, end - self._stream.flushed), seconds, retained, left)

    def columns(self, tables: Sequence[str]) -> dict[str, list[str]]:
        """Returns the column names of tables, published or not."""
        with asking(self.where):
            found = catalog.columns(self._session(), [self._now(t) for t in tables])
        return {t: found[now] for t in tables if (now := self._now(t)) in found}

    def relation(self, table: str) -> Relation:
        """Returns the current layout of a table, with the columns that its publication sends."""
        now = self._now(table)
        with asking(self.where):
            types = self._types(table, now)
            found = catalog.relation(self._session(), now, self.publication, types)
        self._asked[found.relid] = table
        return _under(table, found)

    def parts(self, relation: Relation, rows_per_part: int) -> list[BaselinePart]:
        """Returns parts of the table with about `rows_per_part` rows; none for a root without partitions.

        Raises:
            TableMovedError: the table is locked.
        """
        with asking(self.where):
            try:
                relid = relation.relid
                only = pg_slot.row_filters(self._session(), self.publication, [relid]).get(relid, "true")
                return baseline.parts(self._session(), relation, rows_per_part, only)
            except psycopg.errors.LockNotAvailable:
                sql = quoted_table(self._now(relation.table))
                by = locks.locked_by(self._session(), sql, locks.READ)
                raise TableMovedError(f"{relation.table} {by}", where=self.where, hint=LOCKED) from None

    def read_part(
        self, snapshot: Snapshot, relation: Relation, part: BaselinePart
    ) -> Iterator[BaselineBatch]:
        """Yields the rows of one part in the snapshot (in another process: `baseline.read_part`)."""
        return baseline.read_part(self.url, snapshot.name, relation, part)

    def readers(self, wanted: int) -> tuple[int, str]:
        """Returns as many readers as server, database and role have connections for, without those that the
        stream needs."""
        with asking(self.where):
            left, why = connection_limits.free(self._session())
        allowed = max(connection_limits.LEAST, left - connection_limits.OWN + 1)
        return (wanted, "") if allowed >= wanted else (allowed, why)

    def part_reader(self) -> baseline.PgPartReader:
        """Returns `read_part` as a picklable function for worker processes."""
        return baseline.PgPartReader(self.url)

    def mark(self, text: str) -> bytes:
        """Writes a logical message (prefix `tailrace`) in a separate transaction; returns the position after
        it."""
        with asking(self.where):
            self._session().execute("select pg_logical_emit_message(true, 'tailrace', %s)", (text,))
        return self.end_position()

    def end_position(self) -> bytes:
        """Returns the end of the server's log: everything committed by now is before it."""
        with asking(self.where):
            return position_at(pg_slot.log_end(self._session()))

    def reached(self) -> bytes | None:
        """Returns the position up to which everything was read; None if unknown."""
        self._stream.ping()
        return position_at(self._stream.seen) if self._stream.seen else None

    def close(self) -> None:
        """Closes all connections; publication and slot stay."""
        self._stream.close()
        self._drop_fresh()
        if self._side is not None:
            self._side.close()
            self._side = None

    def _still_published(self) -> None:
        with asking(self.where):
            pg_slot.still_published(self._session(), self.publication, self.where)

    def _session(self) -> Session:
        with self._lock:  # baselines call this from their own thread
            if self._side is None or self._side.closed:
                self._side = self._connect(self.url)
                self._side.execute(f"set lock_timeout = '{locks.PATIENCE}'")
            return self._side

    def _drop_fresh(self) -> None:
        if self._fresh is not None:
            self._fresh.close()
            self._fresh = None

    def _announced(self, message: RelationMessage, moment: Moment, previous: Relation | None) -> Relation:
        """Returns an announced layout. The first one has the name under which the relation is known."""
        said = f"{message.schema}.{message.name}"
        known = self._asked | {one.relid: one.known for one in self._renamed}
        name = known.get(message.relid, previous.table if previous else said)
        types = self._types(name, said)
        with asking(self.where):
            bracket = self._timeline.around(message.relid, moment)
            made = catalog.announced(self._session(), message, moment, bracket, previous, types)
        return _under(name, made) if previous is None else made

    def _now(self, table: str) -> str:
        return next((one.now for one in self._renamed if one.known == table), table)

    def _types(self, known: str, now: str) -> dict[str, str]:
        """Returns the types of a table's columns, under its current name."""
        start = f"{known}."
        return {f"{now}.{n.removeprefix(start)}": t for n, t in self.types.items() if n.startswith(start)}


def _under(table: str, relation: Relation) -> Relation:
    schema, _, name = table.partition(".")
    return replace(relation, schema=schema, name=name)
