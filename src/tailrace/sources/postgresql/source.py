"""PostgreSQL 14 to 18 as a live source, by logical replication (pgoutput): the `LogSource` of that name.

The parts: `pg_checks` (can it work), `pg_slot` (publication, slot), `pg_snapshot`, `pg_stream` (messages ->
records), `pg_catalog` and `pg_layout` (layouts), `pg_baseline` (tables as of a snapshot).
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
    before_images,
    catalog,
    checks,
    column_states,
    connection_limits,
    leaf_identities,
    leaving,
    locks,
    partitions,
    resent,
)
from . import left_out as not_selected
from . import slot as pg_slot
from . import snapshot as pg_snapshot
from .address import address
from .baseline import LOCKED
from .check_tables import Question
from .connect import ANEW, Session, asking, connect, lsn_of, position_at, primary, quoted_table
from .evidence import Moment
from .slot_wait import Waits
from .stream import SlotStream

if TYPE_CHECKING:
    from ...config.task import Task

LONG_S = 2.0
"""A table that was locked for less is not worth a word."""


def from_task(task: Task) -> PostgresSource:
    """The source of a task file."""
    stream = newest(task)
    wanted, slot = task.source.slot, stream.identity.get("slot")
    if wanted and slot and wanted != slot:
        what = f"`source.slot` is {wanted}, and the task has the slot {slot}, which keeps its changes"
        hint = f"write `slot: {slot}`, or start a new task"
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
        task: the task's name; publication and slot are called `tailrace_<task>` when they are made.
        types: `schema.table.column` -> Spark SQL type to use in the lake instead of the usual one.
        idle_advance_s: how often an idle stream moves the slot forward, at most.
        slot: what publication and slot are called; None: after the task.
        begun: whether the task has a stream: a standby at the address is then waited for.
        workers: how many readers a baseline has, for `check`; 0: none.
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
        self._lacking: set[str] | None = None  # what the publication lacked when it was looked at
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
        """Everything that would keep capture of these tables from working, and how to fix it."""
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
        """Before images, for tables whose changes have none."""
        with asking(self.where):
            names = [self._now(t) for t in tables]
            return before_images.offers(self._session(), address(self.url), names)

    def identity(self) -> dict[str, str]:
        """`system_identifier`, `database`, `slot`: where the task's positions are meaningful; `begin`, the
        position of the slot, if it exists."""
        with asking(self.where):
            found = checks.identity(self._session(), self.slot)
            begin = pg_slot.begins(self._session(), self.slot)
        return found if begin is None else found | {"begin": position_at(begin).hex().upper()}

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """`schema.table` names selected by the patterns, sorted; ConfigError for one that does not exist."""
        with asking(self.where):
            return catalog.tables(self._session(), patterns, exclude)

    def left_out(self) -> dict[str, LeftOut]:
        """What no wildcard selects, see `left_out`."""
        with asking(self.where):
            return not_selected.left_out(self._session())

    def identify(self, tables: Sequence[str]) -> dict[str, str]:
        """REPLICA IDENTITY FULL for tables and their partitions; why not, for those that are locked or belong
        to another role."""
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
        """Current `schema.table` names by oid; tables that are gone are missing."""
        with asking(self.where):
            return catalog.names(self._session(), relids)

    def called(self, renamed: Sequence[Renamed]) -> None:
        """Tables that are known under another name than their current one."""
        self._renamed = tuple(renamed)

    def prepare(self, tables: Sequence[str], *, begin: bool = True) -> bool:
        """Creates publication and slot if they are missing; returns whether the slot is new.

        A new slot has a snapshot: `snapshot()` gives it when it is the next call. TableMovedError: a table
        got another name, went, or was created again since they were listed; nothing is published then.
        PositionError: the slot is gone, and none may `begin`; or its publication is.
        """
        with asking(self.where):
            there = pg_slot.begins(self._session(), self.slot) is not None
            if not there and not begin:
                what = "the slot is gone: changes since are lost"
                raise PositionError(what, where=f"{self.where}, slot {self.slot}", hint=ANEW)
            if there:
                self._still_published()  # it was made before the slot was
            try:
                names = {self._now(t): t for t in tables}
                waits = pg_slot.publish(self._session(), self.publication, list(names), self._lacking)
                self._unpublished = {names[now]: why for now, why in waits.items()}
            except psycopg.errors.UndefinedTable as error:
                what = f"a table was renamed since its name was looked up: {error.diag.message_primary}"
                raise TableMovedError(what, where=self.where, hint="its name is looked up again") from error
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
        """The slot and the publication, if they exist."""
        with asking(self.where):
            return leaving.kept(self._session(), self.slot, self.publication, stored)

    def leave(self, stored: Mapping[str, Any] | None) -> None:
        """Drops the slot, and the publication if the role owns it."""
        self.close()
        with asking(self.where):
            leaving.leave(self._session(), self.slot, self.publication, stored)

    @property
    def unpublished(self) -> Mapping[str, str]:
        """The tables that were locked when `prepare` was to publish them."""
        return self._unpublished

    def locked(self, tables: Sequence[str]) -> dict[str, str]:
        """Those of the tables that somebody has locked for some seconds, so that nobody can read them."""
        sql = {t: quoted_table(self._now(t)) for t in tables}
        with asking(self.where):
            held = locks.holders(self._session(), sql, locks.READ)
        long = {
            t: [one for one in by if one.seconds is None or one.seconds > LONG_S] for t, by in held.items()
        }
        return {t: locks.said(by) for t, by in long.items() if by}

    def withdraw(self, tables: Sequence[str]) -> bool:
        """Takes tables out of the publication."""
        with asking(self.where):
            now = [self._now(t) for t in tables]
            waits = pg_slot.withdraw(self._session(), self.publication, now)
        return not waits

    def published(self, tables: Sequence[str]) -> dict[str, str] | None:
        """How the tables are in the publication, see `slot.entries`: a table that is dropped leaves it. From
        then on `prepare` publishes none but those that are not in it."""
        with asking(self.where):
            there = pg_slot.entries(self._session(), self.publication)
        names = {t: self._now(t) for t in tables}
        self._lacking = None if there is None else {now for now in names.values() if now not in there}
        return None if there is None else {t: there[now] for t, now in names.items() if now in there}

    def partitions(
        self, tables: Sequence[str], known: Mapping[str, Collection[str]]
    ) -> dict[str, Partitions]:
        """The partitions of partitioned tables, see `partitions.look`, and `leaf_identities.unidentified`."""
        names = {t: self._now(t) for t in tables}
        with asking(self.where):
            found = partitions.look(self._session(), names, known)
            why = leaf_identities.unidentified(self._session(), {t: names[t] for t in found})
        return {t: one._replace(unidentified=why.get(t, "")) for t, one in found.items()}

    def column_states(
        self, tables: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, ColumnStates]:
        """The columns of tables, see `column_states.look`; those that are not published do not count."""
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
        """Those of the tables whose changes are published under their root's name, and that one."""
        with asking(self.where):
            return partitions.attached(self._session(), self.publication, {t: self._now(t) for t in tables})

    def waits(self, told: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        """What is to be done while something waits for transactions, see `slot_wait.Waits`."""
        self._waits = Waits(self.url, told, stopped)

    @property
    def exact(self) -> bool:
        """Always: snapshots are exported."""
        return True

    def window(self, stopped: Callable[[], bool] = lambda: False) -> Snapshot:
        """Where the log ends once all transactions that may have written unpublished changes have ended.
        Whoever committed before that can be seen then: a commit's record is in the log before its rows are
        visible, long before if it waits for a synchronous standby."""
        self._drop_fresh()
        with asking(self.where):
            self._waits.until_ended(self._session(), stopped)
            position = self.end_position()
            self._waits.until_ended(self._session(), stopped)
        return Snapshot("", position)

    @property
    def slot_is_new(self) -> bool:
        """Whether `prepare` created the slot, and its snapshot has not been used yet."""
        return self._fresh is not None

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """A snapshot that all readers can share, and where the stream continues after it."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            with closing(fresh):
                yield fresh.snapshot
        else:
            with pg_snapshot.temporary_snapshot(self.url, self.slot, self._waits, self.where) as made:
                yield made

    @contextmanager
    def resent(self, upto: bytes, stopped: Callable[[], bool] = lambda: False) -> Iterator[Resent | None]:
        """The log from the slot's own position to this one, if that is before it; the slot stays there."""
        with asking(self.where):
            begin = pg_slot.begins(self._session(), self.slot)
        if begin is None or begin >= lsn_of(upto):
            yield None
            return
        with resent.stream(self._session(), self.url, self.slot, self.publication) as stream:
            with asking(self.where):  # again: as long as the stream is open, it stays
                begin = pg_slot.begins(self._session(), self.slot) or 0
            end = min(lsn_of(upto), lsn_of(self.end_position()))
            yield Resent(position_at(begin), upto, resent.chunks(stream, end, stopped), stream.where)

    def start(self, after: bytes | None, known: Sequence[Relation]) -> None:
        """Begins reading after a position; PositionError if slot or log are gone."""
        self._probe, self._caught_up = None, time.time()
        self._timeline.begin(known)
        self._stream.start(None if after is None else lsn_of(after), known)

    def read(self, limit_bytes: int, wait_s: float) -> Chunk | None:
        """The next records: about `limit_bytes`, or what arrived within `wait_s` seconds; None if nothing
        did."""
        with asking(self.where):
            self._timeline.look()
        chunk = self._stream.read(limit_bytes, wait_s)
        if chunk is not None and not chunk.records.num_rows:
            self._still_published()  # PostgreSQL 18 silently sends nothing if the publication was dropped
        return chunk

    def heartbeat(self) -> None:
        """Keeps the connection alive when `read` is not called for more than some seconds."""
        self._stream.heartbeat()

    def acknowledge(self, position: bytes) -> None:
        """Lets the server discard the log before a position: it is durable in LOG."""
        self._stream.acknowledge(lsn_of(position))

    def lag(self) -> Lag:
        """Bytes of log between the server's end and the acknowledged position; seconds since the newest
        transaction read, or since everything had last been read, whichever is less. Needs a started stream.
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
        """The names of the columns of tables, whether the publication sends them or not."""
        with asking(self.where):
            found = catalog.columns(self._session(), [self._now(t) for t in tables])
        return {t: found[now] for t in tables if (now := self._now(t)) in found}

    def relation(self, table: str) -> Relation:
        """The current layout of a table, with the columns that its publication sends."""
        now = self._now(table)
        with asking(self.where):
            types = self._types(table, now)
            found = catalog.relation(self._session(), now, self.publication, types)
        self._asked[found.relid] = table
        return _under(table, found)

    def parts(self, relation: Relation, rows_per_part: int) -> list[BaselinePart]:
        """The table divided into pieces of about that many rows; none for a root without partitions.
        TableMovedError while it is locked."""
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
        """The rows of one piece as of the snapshot (in another process: `baseline.read_part`)."""
        return baseline.read_part(self.url, snapshot.name, relation, part)

    def readers(self, wanted: int) -> tuple[int, str]:
        """As many as server, database and role have connections for, without those that capture still needs
        for the stream."""
        with asking(self.where):
            left, why = connection_limits.free(self._session())
        allowed = max(connection_limits.LEAST, left - connection_limits.OWN + 1)
        return (wanted, "") if allowed >= wanted else (allowed, why)

    def part_reader(self) -> baseline.PgPartReader:
        """`read_part` as a picklable function, for worker processes."""
        return baseline.PgPartReader(self.url)

    def mark(self, text: str) -> bytes:
        """Writes a logical message (prefix `tailrace`) in its own transaction; returns the position after
        it."""
        with asking(self.where):
            self._session().execute("select pg_logical_emit_message(true, 'tailrace', %s)", (text,))
        return self.end_position()

    def end_position(self) -> bytes:
        """Where the server's log ends: everything committed by now is before it."""
        with asking(self.where):
            return position_at(pg_slot.log_end(self._session()))

    def reached(self) -> bytes | None:
        """The position before which everything has been read; None before anything is known."""
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
        """Its first layout has the name under which the relation is known, whatever it was called then."""
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
        """The types of a table's columns, under its current name."""
        start = f"{known}."
        return {f"{now}.{n.removeprefix(start)}": t for n, t in self.types.items() if n.startswith(start)}


def _under(table: str, relation: Relation) -> Relation:
    schema, _, name = table.partition(".")
    return replace(relation, schema=schema, name=name)
