"""Decides which tables need a baseline, and takes them in threads, in parallel with the capture loop.

A table needs a baseline when it has none, or when a command requests one. In an exact window all tables are
read in one exported snapshot; in an open one each is read separately (`incremental_snapshot`). Before a
baseline replaces a target in use, apply has to stop writing to it, and to confirm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from typing import Any

from ..apply.checks.keyless import needs_locks, why_not
from ..apply.checks.target import waits
from ..config import logs
from ..config.policies import MEDIUM
from ..config.task import Task
from ..errors import ConnectionLostError, TableMovedError, TargetLostError, in_one_line
from ..lake import log
from ..model import sequence
from ..model.change import Relation
from ..sources.base import LogSource, Snapshot
from ..state import commands, lifecycle
from ..state.baselines import Baseline, baseline_numbers, read_baselines, read_open, write_baseline
from ..state.capture_state import AWAY, GONE, pause_s
from ..state.layouts import policy
from ..state.lifecycle import TableLifecycle
from . import baseline_reader
from .baseline_reader import BaselineAttempt, BaselineProgress
from .incremental_snapshot import Windows
from .part_readers import PartReaders
from .part_requests import Requests
from .snapshot_sink import landings
from .table_selection import KnownTables

logger = logging.getLogger("tailrace.capture")
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0)
"""Seconds to wait before a table that was truncated or altered in the meantime is read again; after the last
attempt it is suspended."""


class Stopped(Exception):  # noqa: N818 - not an error
    """The process is about to end; the current baseline is discarded."""


class Baselines:
    """The baselines of one task in one session with its source.

    Attributes:
        progress: the progress shown to the operator, by table.
        failed: errors that ended a thread.
    """

    def __init__(
        self,
        task: Task,
        source: LogSource,
        windows: Windows,
        stop: threading.Event,
        writer: log.LogWriter,
    ) -> None:
        self._task, self._source, self._windows, self._stop = task, source, windows, stop
        self._writer = writer
        self._record, self._orders = task.control_path("baselines"), task.commands_path
        self._threads: list[threading.Thread] = []
        self._few = False
        self._held: list[threading.Event] = []  # each is set once a baseline's snapshot is held
        self._busy: set[str] = set()
        self._unfit: set[str] = set()
        self._unsent: frozenset[str] = frozenset()
        self._given_up: dict[
            str, int
        ] = {}  # suspended tables: the order whose baseline could not be completed
        self.failed: list[BaseException] = []
        self.progress: dict[str, dict[str, Any]] = {}
        for taken in (read_baselines(self._record), read_open(self._record)):
            for one in taken.values():
                writer.announced.base(one.relation, bytes.fromhex(one.position))

    @property
    def running(self) -> bool:
        """Whether a table is being read, or a window is open."""
        return any(t.is_alive() for t in self._threads) or bool(self._windows.tables)

    def join(self) -> None:
        """Waits for the threads."""
        for thread in self._threads:
            thread.join()

    @property
    def busy(self) -> set[str]:
        """Tables that are being read, or whose window is open."""
        return set(self._busy) | self._windows.tables

    def unsent(self, these: Collection[str]) -> None:
        """Records that changes of these tables are missing in the stream.

        A baseline that is read before they are `sent` answers no command, as not all changes after it will
        arrive.
        """
        self._unsent = self._unsent.union(these)

    def sent(self, these: Collection[str]) -> None:
        """Records that the stream has all changes of these tables from now on."""
        self._unsent = self._unsent.difference(these)

    def due(self, wanted: Sequence[str], task: Task, known: KnownTables, busy: set[str]) -> list[str]:
        """Returns the tables that need a baseline, and for which none was running (`busy`) before `known` was
        read.

        In the other order, a baseline that finishes in between would be taken again. The result is empty
        while other tables wait for their snapshot: each one takes one of the server's few slots.
        """
        if any(not ready.is_set() for ready in self._held):
            return []
        asked = {t for t, one in known.states.items() if one.wanted}
        mine = [t for t in wanted if t in asked or (task.baseline.enabled and t not in known.baselines)]
        mine = [t for t in mine if task.policy(t).level >= MEDIUM]
        # The landing of a table that is being renamed is not known yet. A table may just have been removed.
        not_now = {t for t, one in known.states.items() if one.moving or one.removed}
        due = [t for t in mine if t not in busy and t not in not_now]
        return [t for t in due if not self._refused(t, known.states[t])]

    def _refused(self, table: str, state: TableLifecycle) -> bool:
        """Returns whether a table gets no baseline until it is resumed or another one is requested.

        No baseline of it could be completed, or none can be correct. It is suspended then, once per session.
        """
        if state.held == lifecycle.SUSPENDED and self._given_up.get(table) == state.wanted:
            return True
        if self._source.exact:
            return False
        if table not in self._unfit:
            if not needs_locks(self._source, table):
                return False
            if state.held != lifecycle.SUSPENDED:
                why = why_not(table)
                logger.warning("%s: %s", table, why, extra={"table": table})
                commands.suspend(self._orders, table, why, who="capture")
            self._unfit.add(table)
        return True

    def begin(self, due: Sequence[str], task: Task) -> None:
        """Starts the baselines of tables; returns when the snapshot of a new stream is held.

        Other snapshots may wait for transactions at the source while capture continues.
        """
        self._task, new = task, self._source.slot_is_new
        self._busy.update(due)
        for table in due:
            self.progress[table] = {"state": "running", "rows": 0, "parts": 0, "parts_done": 0}
        ready = threading.Event()
        self._held = [one for one in self._held if not one.is_set()] + [ready]
        thread = threading.Thread(target=self._thread, args=(list(due), ready), name="baseline")
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()
        if new:
            ready.wait()
        if self.failed:
            raise self.failed[0]

    def _thread(self, due: list[str], ready: threading.Event) -> None:
        try:
            self._rounds(due, ready)
        except Stopped:
            pass
        except ConnectionLostError as error:
            if not self._stop.is_set():  # otherwise its snapshot is no longer needed
                self.failed.append(error)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self.failed.append(error)
        finally:
            self._busy.difference_update(due)
            ready.set()

    def _rounds(self, due: list[str], ready: threading.Event) -> None:
        """Reads tables; those that are truncated or altered meanwhile are read again after a pause, when the
        others are done.

        A table that is altered each time is suspended.
        """
        left, moved = due, dict[str, TableMovedError]()
        for pause in (0.0, *PAUSES_S):
            if pause and self._stop.wait(pause):
                raise Stopped
            moved = self._once_there(left, ready)
            self._busy.difference_update(set(left) - moved.keys())
            if not moved:
                return
            for error in moved.values():
                logger.warning("%s; reading again", error.what)
            left = list(moved)
        for table, error in moved.items():
            why = f"no baseline could be finished, {len(PAUSES_S) + 1} times in a row: {error.what}"
            self._give_up(table, why)

    def _give_up(self, table: str, why: str) -> None:
        """Suspends a table that can have no baseline."""
        self._given_up[table] = lifecycle.read(self._task)[table].wanted
        self.progress[table]["state"] = "given up"
        logger.warning("%s: %s", table, why, extra={"table": table})
        commands.suspend(self._orders, table, why, who="capture")

    def _once_there(self, due: list[str], ready: threading.Event) -> dict[str, TableMovedError]:
        """Calls `_once`, again and again while a target that was reached before does not answer; capture
        continues."""
        for attempt in count():
            try:
                return self._once(due, ready)
            except TargetLostError as error:
                if not waits(self._task):
                    raise
                for table in due:
                    self.progress[table] = {"state": AWAY}
                seconds = pause_s(attempt)
                logger.warning("%s; the baseline restarts in %.0f s", error.what, seconds)
                if self._stop.wait(seconds):
                    raise Stopped from None
        raise AssertionError  # it counts for ever

    def _once(self, due: list[str], ready: threading.Event) -> dict[str, TableMovedError]:
        """Reads each table once; returns those that were truncated or altered meanwhile.

        Tables that do not exist are left to the next check of the catalog, which finds them under another
        name if they were renamed.
        """
        moved = dict[str, TableMovedError]()
        alone, shared = list[str](), list[str]()
        states = lifecycle.read(self._task)
        for table in self._there(due):
            try:
                mine = alone if self._in_open_window(table, states[table]) else shared
                mine.append(table)
            except TableMovedError as error:  # it was dropped or renamed at this moment
                moved[table] = error
        if shared or (self._source.slot_is_new and not alone):
            moved |= self._exact(shared, ready)
        ready.set()
        if alone:
            with self._readers() as readers:
                for table in alone:
                    try:
                        moved |= self._open(table, readers)
                    except TableMovedError as error:  # it was dropped or renamed meanwhile
                        moved[table] = error
        return moved

    def _there(self, due: Sequence[str]) -> list[str]:
        """Returns the tables that exist, in one query."""
        there = self._source.columns(due) if due else {}
        for table in (t for t in due if t not in there):
            logger.warning(
                "%s: no baseline is read: there is no table %s", table, table, extra={"table": table}
            )
            self.progress[table] = {"state": GONE}
        return [t for t in due if t in there]

    def _in_open_window(self, table: str, asked: TableLifecycle) -> bool:
        wanted, exact = self._task.baseline.window, self._source.exact
        if wanted == "exact" or (exact and (wanted == "auto" or asked.exact)):
            return False
        # Rows that cannot be distinguished cannot be upserted.
        return bool(self._source.relation(table).key)

    def _exact(self, due: list[str], ready: threading.Event) -> dict[str, TableMovedError]:
        """Reads all tables in one snapshot."""
        attempts = self._attempts(due)
        with self._source.snapshot() as snapshot:
            self._note_layouts(due)
            ready.set()
            if not due:
                return {}
            with self._readers() as readers:
                return self._take(snapshot, attempts, self._land, self._record_done, readers)

    def _readers(self) -> PartReaders:
        wanted = self._task.baseline.workers
        workers, why = self._source.readers(wanted)
        if why and not self._few:
            logger.warning("a baseline has %d readers instead of %d: %s", workers, wanted, why)
        self._few = bool(why)
        return PartReaders(workers, spark=Requests(self._task, workers, self._stop.is_set))

    def _open(self, table: str, readers: PartReaders) -> dict[str, TableMovedError]:
        """Reads one table separately, while it is being written to."""
        attempts, before = self._attempts([table]), self._source.relation(table)
        window = self._source.window(self._stop.is_set)
        if self._stop.is_set():
            raise Stopped
        self._note_layouts([table])

        def land(relation: Relation, one: BaselineAttempt) -> bool:
            if not relation == before == self._source.relation(table):
                raise TableMovedError(f"{table} was altered while it was read", hint="it is read again")
            return self._land(relation, one)

        return self._take(window, attempts, land, self._windows.opened, readers)

    def _attempts(self, due: Sequence[str]) -> Mapping[str, BaselineAttempt]:
        """Returns the baselines to read, each with the command that it answers.

        The commands are read before the snapshot, so that no later one is missed. If the stream misses
        changes of a table, its baseline answers no command, and it is read again.
        """
        numbers = baseline_numbers(self._record)
        orders = {one.table: one.number for one in commands.read(self._orders)}
        # Read after the commands: a table that is sent by now was so before the snapshot.
        orders |= dict.fromkeys(self._unsent, 0)
        after = self._writer.state.number
        return {t: BaselineAttempt(numbers.get(t, 0) + 1, orders.get(t, 0), after) for t in due}

    def _note_layouts(self, due: Sequence[str]) -> None:
        """Records the first layouts of tables; a table that does not exist is noticed when it is read."""
        relations: list[Relation] = []
        for table in due:
            with suppress(TableMovedError):
                relations.append(self._source.relation(table))
        path = self._task.relations_path
        known, names = log.latest(log.layouts(path)), log.history(path)
        # The stream reports a recreated table with its first change: changes of the previous one may still
        # arrive.
        log.record_layouts(
            path,
            [
                log.Layout(r, b"", sequence.FIRST)
                for r in relations
                if r.relid not in known and r.table not in names
            ],
        )

    def _land(self, relation: Relation, one: BaselineAttempt) -> bool:
        """Stops apply from writing to the target until the baseline is recorded; returns False if the table
        was removed meanwhile."""
        table = relation.table
        if not self._task.baseline.enabled or one.number > 1:  # otherwise apply has not begun
            number = commands.give(
                self._orders, commands.LAND, [table], why=f"baseline {one.number}", who="capture",
                baseline=one.number,
            )  # fmt: skip
            while not commands.heard(self._task.run_path, number):
                if self._stop.wait(0.1):
                    raise Stopped
        return not lifecycle.read(self._task)[table].removed

    def _record_done(self, done: Sequence[Baseline]) -> None:
        write_baseline(self._record, *done)
        for one in done:
            said = {"table": one.table, "position": one.position}
            logs.event("baseline of %s: %s rows", one.table, f"{one.rows:,}", **said)

    def _progress(self, at: BaselineProgress) -> None:
        state = "done" if at.parts_done == at.parts else "running"
        self.progress[at.table] = {**asdict(at), "state": state}

    def _take(
        self,
        snapshot: Snapshot,
        attempts: Mapping[str, BaselineAttempt],
        land: Callable[[Relation, BaselineAttempt], bool],
        record: Callable[[Sequence[Baseline]], None],
        readers: PartReaders,
    ) -> dict[str, TableMovedError]:
        task = self._task
        logs.event("baseline begins: %s", ", ".join(attempts))
        reading = baseline_reader.BaselineOptions(
            landings(task),
            task.control_path("quarantine"),
            task.baseline.rows_per_part,
            keep_bad=task.on_bad_value == "quarantine",
            hidden=lambda relation: policy(task, relation.table, relation).hidden(relation),
            progress=self._progress,
            landing=land,
            based=self._writer.announced.base,
            stopped=self._stop.is_set,
            failed=lambda table, error: self._give_up(table, f"no baseline: {in_one_line(error)}"),
        )
        return baseline_reader.take_baselines(self._source, snapshot, attempts, reading, record, readers)
