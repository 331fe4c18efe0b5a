"""Applies what the store has written to the targets of a task, in rounds, and records each round.

The applier follows the table `stored`: a row for each batch of the store, written before TRACKING. It applies
*rounds*: consecutive whole store batches of at most `max_changes` rows. So each round ends with a whole
transaction of the source. Each target keeps its own progress, in its own commits. A round that is applied
again skips the changes that a target has already.

A table takes part in a round only if it has all earlier changes, so the numbers of changes that the store has
counted are upper bounds for the table (`ChangeBatch.counts`). A table that was paused, had no baseline or has
failed is *late* (see `Backlog`). It gets separate rounds, from its progress on, until it has all changes up
to the newest round.

    catch_up
      _apply_new       rounds that are new to all tables
        Rounds.apply     one round, tables side by side, then the record
          TableApplier     the changes of a table, cut at new layouts, mapped to its target
            Merger           one merge for each batch, and its key log
      _apply_late      the same for late tables, from the progress of the last of them on
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import BaselineNeededError, OvertakenError, TailraceError
from ..execution import seconds_waited
from ..lake import delta as lake
from ..model.positions import order_key
from ..state import totals
from ..state.ledger import APPLIED_APP, AppliedTable, Stored
from ..targets.base import Target
from .apply_record import ApplyRecord
from .backlog import Backlog, cut_rounds
from .cadence import Cadence
from .mapped_snapshots import MappedSnapshotLoader
from .merger import Merger, Read
from .reading import ApplyPaths, read_changes
from .rounds import Rounds
from .route import Routes
from .scheduler import Scheduler
from .table_applier import TableApplier
from .table_progress import TableHistory, TableProgress
from .task_rules import TaskRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 5
"""The maximum number of attempts of one call if another process writes to the key log in the meantime."""


class Applier:
    """Applies stored changes to the targets of one task. Any thread may call `catch_up`."""

    def __init__(
        self,
        spark: SparkSession,
        paths: ApplyPaths,
        target: Target,
        *,
        max_changes: int,
        max_bytes: int = 1 << 62,
        parallel: int,
        need_baseline: bool,
        scheduler: Scheduler,
        rules: TaskRules | None = None,
        routes: Routes | None = None,
        loads: MappedSnapshotLoader | None = None,
        read: Read | None = None,
    ) -> None:
        self._spark, self._paths, self._loads, self._rules = spark, paths, loads, rules
        self._round_limits, self._need_baseline = (max_changes, max_bytes), need_baseline
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._history = TableHistory(paths)
        self._progress = TableProgress(target, rules, self._history)
        self._backlog = Backlog(paths.stored, lake.progress(paths.applied, APPLIED_APP) or 0)
        merger = Merger(spark, target, rules, read or read_changes)
        self._tables = TableApplier(
            target, paths, rules, routes, scheduler, self._history, self._progress, merger
        )
        self._record = ApplyRecord(paths.applied, self._backlog, self._tables.applied_before)
        self._rounds = Rounds(self._tables, self._record, parallel)
        self._loads_read = False
        self._arrived = time.monotonic()

    def add(self, batch: Stored) -> None:
        """Adds a store batch that has just been written; never waits."""
        self._arrived = time.monotonic()
        self._backlog.add(batch)

    @property
    def recorded(self) -> int:
        """The change number of the last recorded round."""
        return self._backlog.recorded

    def catch_up(
        self, stop: threading.Event | None = None, cadence: Cadence | None = None
    ) -> list[AppliedTable]:
        """Applies everything that waits, if the cadence says that it is time. Returns a row for each commit.

        Raises:
            TailraceError: the changes of a table could not be applied, and that ends the task. The commits of
                other tables in the round are recorded.
        """
        with self._lock:
            arrived = self._arrived
            new = self._backlog.take()  # first, so that the layouts of these batches are known below
            waited = max(time.monotonic() - arrived, 0.0) if new else 0.0
            self._scheduler.begin(waited)
            self._refresh()
            late = [t for t in self._backlog.late if self._is_due(t)]
            changes = sum(b.rows or 1 for b in new) + len(late)
            if cadence and not cadence.due(changes, sum(b.size for b in new)):
                return []
            # Waiting for the start of Spark must not lengthen the interval.
            began = time.monotonic() - seconds_waited(self._spark)
            self._rounds.done, self._rounds.failed = [], set()
            self._apply_all(stop)
            if cadence:
                cadence.ended(time.monotonic() - began - seconds_waited(self._spark), waited)
            return self._rounds.done

    @contextmanager
    def held(self) -> Iterator[None]:
        """Applies nothing and follows no command until the block ends: the caller may write to targets."""
        with self._lock:
            try:
                yield
            finally:
                self._progress.forget()
                if self._rules:
                    self._rules.forget(key_log=True)

    def _apply_all(self, stop: threading.Event | None) -> None:
        """Applies everything that waits. Repeats it if another process wrote to the key log."""
        for attempt in range(ATTEMPTS):
            try:
                self._late_tables()
                self._apply_new(stop)
                self._apply_late(stop)
                return
            except OvertakenError:
                if attempt == ATTEMPTS - 1:
                    raise

    # Rounds that are new to all tables.

    def _apply_new(self, stop: threading.Event | None) -> None:
        """Applies rounds that are new to every table. A table that cannot be applied now becomes late."""
        while new := self._backlog.take():
            for stored in cut_rounds(new, *self._round_limits):
                if stop is not None and stop.is_set():
                    return
                self._refresh()
                changed = {t for b in stored for t in b.tables}
                ready = {t for t in changed - self._backlog.late.keys() if self._is_due(t)}
                ready = {t for t in sorted(ready) if self._is_readable(t)}
                for table in changed - self._rounds.apply(stored, ready, newest=True):
                    self._backlog.add_late(table, stored[-1].upto)
            if not self._backlog.unread:
                return

    # Rounds of late tables.

    def _apply_late(self, stop: threading.Event | None) -> None:
        """Applies the missing changes of late tables, until they have all that the others have."""
        while (late := self._late_tables()) and not (stop is not None and stop.is_set()):
            self._refuse_removed(late)
            if late:
                self._apply_rounds_of(late, stop)

    def _late_tables(self) -> dict[str, int]:
        """Returns the progress of late tables that are due and have not failed in this call. Tables that have
        all changes are no longer late, and their count of errors is reset."""
        late = {}
        for table in sorted(t for t in self._backlog.late.keys() - self._rounds.failed if self._is_due(t)):
            if not self._is_readable(table):
                continue
            number = order_key(self._progress.of(table))
            if number < self._backlog.late[table]:
                late[table] = number
            else:
                self._end_late(table)
        return late

    def _end_late(self, table: str) -> None:
        """Notes that a table has all changes; otherwise it would be tried again forever."""
        del self._backlog.late[table]
        self._scheduler.applied(table)

    def _refuse_removed(self, late: dict[str, int]) -> None:
        """Fails the tables that need store batches which retention has removed."""
        stored, applied = self._paths.stored, self._paths.applied
        removed = totals.parts_gone(stored)
        if not any(removed.get(t, -1) > progress for t, progress in late.items()):
            return
        # The record may be ahead of a target, if a table had no changes to apply.
        loads = self._loads.done if self._loads else {}
        recorded = totals.Totals(stored, applied).reached(self._history.baselines, loads)
        for table, progress in sorted(late.items()):
            if removed.get(table, -1) > max(progress, recorded.get(table, -1)):
                error = BaselineNeededError(
                    f"its target has the changes up to {late.pop(table)}, and store batches of it up to "
                    f"{removed[table]} were removed",
                    where=f"apply {table}",
                    hint=f"`tailrace resync` {table}",
                )
                self._fail(table, error)

    def _apply_rounds_of(self, late: Mapping[str, int], stop: threading.Event | None) -> None:
        """Applies rounds to late tables, from the least of their progress on."""
        baselines = {t: self._history.baselines.get(t) for t in late}
        active, start = set(late), min(late.values())

        def unchanged() -> set[str]:
            """The tables that continue; a target that was replaced in the meantime has another progress."""
            return {t for t in active if self._is_due(t) and self._history.baselines.get(t) == baselines[t]}

        while active := unchanged():
            waiting = self._backlog.waiting(start, active)
            if not waiting:
                for table in active:
                    self._end_late(table)
                return
            for stored in cut_rounds(waiting, *self._round_limits):
                if stop is not None and stop.is_set():
                    return
                self._refresh()
                active = self._rounds.apply(stored, unchanged(), newest=False)
                start = stored[-1].upto
                self._apply_new(stop)  # the other tables do not wait for late ones

    # Which tables may be applied now.

    def _is_due(self, table: str) -> bool:
        if self._loads is not None and not self._loads.ready(table):
            return False
        has_rows = not self._need_baseline or table in self._history.baselines
        return has_rows and self._scheduler.is_due(table)

    def _is_readable(self, table: str) -> bool:
        """Whether the progress of a table can be read now. Adds what is missing in the record."""
        try:
            self._record.check(table, self._progress.of(table))
            return True
        except Exception as error:  # noqa: BLE001 - the scheduler raises it again if it ends the task
            self._fail(table, self._tables.explained(table, error))
            return False

    def _fail(self, table: str, error: TailraceError) -> None:
        self._rounds.failed.add(table)
        self._backlog.add_late(table, self._backlog.recorded)  # until its progress is known
        self._scheduler.failed(table, error)

    def _refresh(self) -> None:
        """Reads layouts, baselines and commands that are new."""
        changed = self._history.refresh()
        if changed is not None:
            self._loads_read = False
            self._progress.forget(changed)
            self._rounds.failed -= changed
            for table in changed:  # its target was replaced: it has what LOG had when its baseline began
                self._backlog.add_late(table, self._backlog.recorded)
        self._scheduler.refresh(self._history.baselines)
        if self._loads is not None and not self._loads_read:
            self._loads.refresh(self._history.baselines, self._scheduler)
        elif self._loads is not None:
            self._loads.retry(self._history.baselines, self._scheduler)
        self._loads_read = True
