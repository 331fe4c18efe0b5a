"""Applies what the store has written: slices of whole transactions, tables of a slice side by side.

The applier follows the `stored` record (written before TRACKING). A slice is a run of store batches with at
most `max_changes` rows (one batch at least), so it ends where source transactions end. Each target keeps its
own progress, in its own commits; a slice that is applied again skips what a target already has.

A table takes part in a slice only when it lacks nothing from before it, so that what the store has counted in
the slice bounds what the table gets (`TableBatch.counts`). Who is not that far, because it was paused, had no
baseline or has failed, is behind (`Backlog`), and gets slices of its own that begin where it stands.
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
from ..state import totals
from ..state.ledger import APPLIED_APP, AppliedTable, Stored
from ..targets.base import Target
from .apply_record import Record
from .backlog import Backlog
from .cadence import Cadence
from .mapped_snapshots import MappedSnapshotLoader
from .merger import Read, TaskBatches
from .reading import ApplyPaths, read_changes
from .round import SliceApply
from .route import Routes
from .scheduler import Gate
from .segment import slices
from .table_progress import Reach, TableHistory
from .table_round import TableApply
from .task_rules import TaskRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES = 5
"""So many times one call begins again because another process wrote to the key log meanwhile."""


class Applier:
    """Brings targets up to what is stored; one instance per task, any thread may call `catch_up`."""

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
        gate: Gate,
        rules: TaskRules | None = None,
        routes: Routes | None = None,
        loads: MappedSnapshotLoader | None = None,
        read: Read | None = None,
    ) -> None:
        self._paths, self._loads, self._rules = paths, loads, rules
        self._most, self._need_baseline = (max_changes, max_bytes), need_baseline
        self._gate = gate
        self._lock = threading.Lock()
        self._known = TableHistory(paths)
        self._reach = Reach(target, rules, self._known)
        self._backlog = Backlog(paths.stored, lake.progress(paths.applied, APPLIED_APP))
        batches = TaskBatches(spark, target, paths, rules, read or read_changes)
        self._tables = TableApply(
            spark, target, rules, routes, self._gate, self._known, self._reach, batches
        )  # fmt: skip
        self._record = Record(paths.applied, self._backlog, self._tables.there)
        self._slices = SliceApply(self._tables, batches, self._record, parallel)
        self._loaded = False
        self._arrived = time.monotonic()

    def add(self, batch: Stored) -> None:
        """Adds a store batch that has just been written; never waits."""
        self._arrived = time.monotonic()
        self._backlog.add(batch)

    @property
    def recorded(self) -> int:
        """The change number of the last recorded apply batch."""
        return self._backlog.recorded

    def catch_up(
        self,
        stop: threading.Event | None = None,
        cadence: Cadence | None = None,
    ) -> list[AppliedTable]:
        """Applies every pending slice, if the cadence says that it is time; gives what was done, per table
        and slice.

        Raises:
            TailraceError: the changes of a table could not be applied, and that ends the task. What other
                tables got in the slice is recorded.
        """
        with self._lock:
            arrived = self._arrived
            front = self._backlog.take()  # before layouts are read: theirs are known then
            waited = max(time.monotonic() - arrived, 0.0) if front else 0.0
            self._gate.begin(waited)
            self._refresh()
            waiting = [t for t in self._backlog.behind if self._ready(t)]
            changes = sum(b.rows or 1 for b in front) + len(waiting)
            if cadence and not cadence.due(changes, sum(b.size for b in front)):
                return []
            # Waiting for Spark's start costs once: later batches need not be rarer for it.
            began = time.monotonic() - seconds_waited(self._tables.spark)
            self._slices.done, self._slices.failed = [], set()
            self._until_logged(stop)
            if cadence:
                cadence.went(time.monotonic() - began - seconds_waited(self._tables.spark), waited)
            return self._slices.done

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block nothing is applied, and no order is followed: the caller may write to targets."""
        with self._lock:
            try:
                yield
            finally:
                self._reach.forget()
                if self._rules:
                    self._rules.after_others()

    def _until_logged(self, stop: threading.Event | None) -> None:
        """Applies everything; again where the key log was left behind its targets."""
        for tries in range(TRIES):
            try:
                self._behind()
                self._pass_front(stop)
                self._bring_up(stop)
                return
            except OvertakenError:
                if tries == TRIES - 1:
                    raise

    def _pass_front(self, stop: threading.Event | None) -> None:
        """Applies batches that are new to every table. Who cannot have them now is behind from then on."""
        while front := self._backlog.take():
            for one in slices(front, *self._most):
                if stop is not None and stop.is_set():
                    return
                self._refresh()
                here = {t for b in one for t in b.tables}
                level = {t for t in here - self._backlog.behind.keys() if self._ready(t)}
                level = {t for t in sorted(level) if self._stand(t) is not None}
                for table in here - self._slices.apply(one, level, ends=True):
                    self._backlog.waits(table, one[-1].upto)
            if not self._backlog.unread:
                return

    def _bring_up(self, stop: threading.Event | None) -> None:
        """Applies to tables that are behind what they lack, until they are level with the front."""
        while (behind := self._behind()) and not (stop is not None and stop.is_set()):
            self._refuse_lost(behind)
            if behind:
                self._follow(behind, stop)

    def _refuse_lost(self, behind: dict[str, int]) -> None:
        """Takes out the tables that need store batches which are not kept any more: what they get could not
        be told."""
        stored, applied = self._paths.stored, self._paths.applied
        gone = totals.parts_gone(stored)
        if not any(gone.get(t, -1) > reached for t, reached in behind.items()):
            return
        # By the record they may be further than their targets: where there was nothing to apply.
        loads = self._loads.done if self._loads else {}
        recorded = totals.Totals(stored, applied).reached(self._known.baselines, loads)
        for table, reached in sorted(behind.items()):
            if gone.get(table, -1) > max(reached, recorded.get(table, -1)):
                error = BaselineNeededError(
                    f"it stands at change number {behind.pop(table)}, and store batches of it up to "
                    f"{gone[table]} are not kept any more",
                    where=f"apply {table}",
                    hint=f"`tailrace resync` {table}",
                )
                self._fail(table, error)

    def _behind(self) -> dict[str, int]:
        """Where tables stand that are behind and may go on now, which those that failed in this call may not.
        Tables that are level after all are so from now on, and their row of errors has ended."""
        behind = {}
        for table in sorted(t for t in self._backlog.behind.keys() - self._slices.failed if self._ready(t)):
            if (reached := self._stand(table)) is None:
                continue
            if reached < self._backlog.behind[table]:
                behind[table] = reached
            else:
                self._level(table)
        return behind

    def _level(self, table: str) -> None:
        """Notes that a table lacks nothing up to the front; else it would be tried again for ever."""
        del self._backlog.behind[table]
        self._gate.went(table)

    def _follow(self, behind: Mapping[str, int], stop: threading.Event | None) -> None:
        """Brings tables up from the change numbers where they stand."""
        begun = {t: self._known.baselines.get(t) for t in behind}
        active, after = set(behind), min(behind.values())

        def as_begun() -> set[str]:
            """Those that may go on; where the target was replaced meanwhile, they stand elsewhere now."""
            return {t for t in active if self._ready(t) and self._known.baselines.get(t) == begun[t]}

        while active := as_begun():
            window = self._backlog.window(after, active)
            if not window:
                for table in active:
                    self._level(table)
                return
            for one in slices(window, *self._most):
                if stop is not None and stop.is_set():
                    return
                self._refresh()
                active = self._slices.apply(one, as_begun(), ends=False)
                after = one[-1].upto
                self._pass_front(stop)  # nobody waits for those who are behind

    def _ready(self, table: str) -> bool:
        if self._loads is not None and not self._loads.ready(table):
            return False
        return (not self._need_baseline or table in self._known.baselines) and self._gate.open(table)

    def _stand(self, table: str) -> int | None:
        """The change number that a table has reached; None when that cannot be told now."""
        try:
            reached = self._reach.of(table)
            self._record.check(table, reached)
            return reached
        except Exception as error:  # noqa: BLE001 - the gate raises it again when it ends the task
            self._fail(table, self._tables.explained(table, error))
            return None

    def _fail(self, table: str, error: TailraceError) -> None:
        self._slices.failed.add(table)
        self._backlog.waits(table, self._backlog.recorded)  # until it is known where it stands
        self._gate.failed(table, error)

    def _refresh(self) -> None:
        """Takes in layouts, baselines and orders."""
        changed = self._known.refresh()
        if changed is not None:
            self._loaded = False
            self._reach.forget(changed)
            self._slices.failed -= changed
            for table in changed:  # its target was replaced: it is at what LOG held when its baseline began
                self._backlog.waits(table, self._backlog.recorded)
        self._gate.refresh(self._known.baselines)
        if self._loads is not None and not self._loaded:
            self._loads.refresh(self._known.baselines, self._gate)
        elif self._loads is not None:
            self._loads.look(self._known.baselines, self._gate)
        self._loaded = True
