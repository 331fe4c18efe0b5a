"""Applies what the store has written: slices of whole transactions, tables of a slice side by side.

The applier follows the `stored` record (written before TRACKING). A slice is a run of store batches with at
most `max_changes` rows (one batch at least), so it ends where source transactions end. Each target keeps its
own progress, in its own commits; a slice that is applied again skips what a target already has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import lake, log
from ..control import ledger
from ..control.ledger import AppliedTable, Baseline, Stored
from ..errors import TailraceError, from_spark
from .cadence import Cadence
from .gate import Always, Gate
from .keylog import OvertakenError
from .loading import Loads
from .plan import SPECIAL
from .reading import ApplyPaths, read_changes
from .route import Halt, Route, Routes
from .segment import Segment, segments, slices
from .small_batches import SmallBatches
from .targets.base import Target
from .targets.delta_many import Small
from .task_rules import TaskRules
from .way import Way, applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLIED_APP = "tailrace/applied"


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
        gate: Gate | None = None,
        rules: TaskRules | None = None,
        routes: Routes | None = None,
        loads: Loads | None = None,
    ) -> None:
        self._rules, self._routes, self._loads = rules, routes, loads
        self._spark, self._paths, self._target = spark, paths, target
        self._most = (max_changes, max_bytes)
        self._parallel, self._need_baseline = parallel, need_baseline
        self._gate = gate or Always()
        self._small = SmallBatches(target, paths, rules)
        self._failing = threading.Lock()
        self._lock = threading.Lock()
        self._stored: list[Stored] = ledger.read_stored(paths.stored)
        self._progress: dict[str, int] = {}
        self._versions = (-1, -1)
        self._history: dict[str, list[log.Layout]] = {}
        self._baselines: dict[str, Baseline] = {}
        self._followed: dict[str, Baseline | None] = {}
        self._recorded = lake.progress(paths.applied, APPLIED_APP)

    def add(self, batch: Stored) -> None:
        """Tells the applier of a store batch as soon as it is written."""
        with self._lock:
            if not self._stored or batch.upto > self._stored[-1].upto:
                self._stored.append(batch)

    @property
    def recorded(self) -> int:
        """The change number of the last recorded apply batch."""
        return self._recorded

    def catch_up(
        self, stop: threading.Event | None = None, cadence: Cadence | None = None
    ) -> list[AppliedTable]:
        """Applies every pending slice, if the cadence says that it is time; gives what was done, per table
        and slice."""
        done: list[AppliedTable] = []
        with self._lock:
            self._gate.begin()
            self._refresh()
            pending = self._pending()
            if cadence and not cadence.due(sum(b.rows or 1 for b in pending), sum(b.size for b in pending)):
                return done
            began = time.monotonic()
            for n, one in enumerate(slices(pending, *self._most)):
                if stop is not None and stop.is_set():
                    break
                if n:
                    self._refresh()
                done += self._slice(one)
            self._stored = [
                b
                for b in self._stored
                if b.upto > self._recorded
                or any(self._lags(t, b) and not self._gate.gone(t) for t in b.tables)
            ]
            if cadence:
                cadence.went(time.monotonic() - began)
        return done

    def _lags(self, table: str, batch: Stored) -> bool:
        return batch.upto > self._reached(table)

    def _reached(self, table: str) -> int:
        if table not in self._progress:
            reached = self._target.progress(table)
            # What a crash kept from the key log comes again, for it alone.
            logged = self._rules.logged(table) if self._rules else None
            self._progress[table] = reached if logged is None else min(reached, logged)
        return self._progress[table]

    def _ready(self, table: str) -> bool:
        if self._loads is not None and not self._loads.ready(table):
            return False
        return (not self._need_baseline or table in self._baselines) and self._gate.open(table)

    def _pending(self) -> list[Stored]:
        """Stored batches with something to do: a ready table behind, or the batch itself not recorded."""
        return [
            b
            for b in self._stored
            if b.upto > self._recorded or any(self._ready(t) and self._lags(t, b) for t in b.tables)
        ]

    def _slice(self, batches: list[Stored]) -> list[AppliedTable]:
        last = batches[-1]
        counts: dict[str, dict[str, int]] = {}
        for batch in batches:
            for table, mine in batch.tables.items():
                if self._ready(table) and self._lags(table, batch):
                    total = counts.setdefault(table, dict.fromkeys(SPECIAL, 0))
                    for k in SPECIAL:
                        total[k] += mine.get(k, 0)
        try:
            if self._rules:
                self._rules.begin({t: self._reached(t) for t in counts})
            together, failed = self._together(last.upto, counts)
            rest = sorted(set(counts) - set(together))
            alone = self._side_by_side(rest, lambda t: self._try(t, last.upto, counts[t]), failed)
            done = [*together.values(), *alone]
        except OvertakenError:  # targets have it, the key log not: it comes again
            return []
        flat = [one for many in done for one in many]
        # A table whose baseline came later is behind the record; the record itself never goes back.
        if last.upto > self._recorded:
            ledger.write_applied(self._paths.applied, last, flat, APPLIED_APP)
            self._recorded = last.upto
        elif flat:
            ledger.write_applied(self._paths.applied, last, flat)
        return flat

    def _together(
        self, upto: int, counts: Mapping[str, Mapping[str, int]]
    ) -> tuple[dict[str, list[AppliedTable]], list[tuple[str, TailraceError]]]:
        """Applies small batches of tables in one job, when there are several; and what failed."""
        todo = [s for t in sorted(counts) if (s := self._small_batch(t, upto, counts[t]))]
        done: dict[str, list[AppliedTable]] = {}
        failed: list[tuple[str, TailraceError]] = []
        for table, made in self._small.run(todo).items():
            if made is None:
                continue
            done[table] = []
            self._progress.pop(table, None)
            if isinstance(made, TailraceError):
                failed.append((table, made))
                continue
            self._gate.went(table)
            done[table] = [applied(table, made)]
            if made.suspended is None:
                self._progress[table], self._followed[table] = upto, self._baselines.get(table)
        return done, failed

    def _small_batch(self, table: str, upto: int, counts: Mapping[str, int]) -> Small | None:
        if not self._small.may(table, counts):
            return None
        routes, halt = self._routed(table, upto)
        return None if halt is not None else self._small.of(table, routes, self._baselines.get(table))

    def _side_by_side(
        self,
        tables: Sequence[str],
        work: Callable[[str], list[AppliedTable]],
        failed: Sequence[tuple[str, TailraceError]],
    ) -> list[list[AppliedTable]]:
        """Applies tables of a slice. Whatever one of them meets, or those that `failed` before, the others
        end, and what was done is logged, before its error is raised."""
        with ThreadPoolExecutor(max_workers=self._parallel, thread_name_prefix="apply") as pool:
            waiting = [pool.submit(work, t) for t in tables]
            wait(waiting)
        if self._rules:
            try:
                self._rules.flush()
            except BaseException:
                self._progress.clear()  # the key log is behind its targets
                self._rules.again()
                raise
        for table, error in failed:
            self._gate.failed(table, error)
        return [one.result() for one in waiting]

    def _try(self, table: str, upto: int, counts: Mapping[str, int]) -> list[AppliedTable]:
        try:
            done = self._table(table, upto, counts)
        except Exception as error:  # noqa: BLE001 - the gate raises it again when it ends the task
            self._progress.pop(table, None)
            with self._failing:
                self._gate.failed(table, self._explained(table, error))
            return []
        self._gate.went(table)
        return done

    def _explained(self, table: str, error: Exception) -> TailraceError:
        where = f"apply {table}"
        told = self._routes.value_error(table, error, where=where) if self._routes else None
        return told or from_spark(error, where=where)

    def _table(self, table: str, upto: int, counts: Mapping[str, int]) -> list[AppliedTable]:
        done: list[AppliedTable] = []
        baseline = self._baselines.get(table)
        routes, halt = self._routed(table, upto)
        # The store has counted whole batches: rows that a baseline has already, or that are applied, too.
        whole = len(routes) == 1 and halt is None and not routes[0][1].steps
        exact = whole and table in self._followed and self._followed[table] == baseline
        self._followed.pop(table, None)
        for one, route in routes:
            to = replace(one, before=route.before, relation=route.relation)
            way = Way(self._target, self._rules, table, to, exact, baseline.number if baseline else 0)
            way.alter()
            changes = read_changes(self._spark, self._paths.changes(table), one)
            if changes is None:
                continue
            changes, mine = route.through(changes, counts)
            if (why := to.unclear(mine)) and self._unclear(table, why):
                self._progress.pop(table, None)
                return done
            done += way.apply(changes, mine)
            if way.suspended is not None:
                self._progress.pop(table, None)
                return done
        if halt is not None and self._routes is not None:
            self._progress.pop(table, None)
            self._routes.carry_out(halt)
            return done
        self._progress[table] = upto
        self._followed[table] = baseline
        return done

    def _routed(self, table: str, upto: int) -> tuple[list[tuple[Segment, Route]], Halt | None]:
        """The stretches of a table's changes, each with its route to the target."""
        history, baseline, reached = self._history[table], self._baselines.get(table), self._reached(table)
        spans = segments(history, baseline, reached, upto)
        if self._routes is None:
            return [(one, Route(one.before, one.relation)) for one in spans], None
        return self._routes.follow(table, spans, history, baseline, reached)

    def _unclear(self, table: str, why: str) -> bool:
        with self._failing:
            return self._gate.unclear(table, why)

    def _refresh(self) -> None:
        versions = (lake.version(self._paths.relations), lake.version(self._paths.baselines))
        if versions != self._versions:
            self._versions = versions
            self._history = log.history(self._paths.relations)
            fresh = ledger.read_baselines(self._paths.baselines)
            changed = [one for one in fresh.values() if self._baselines.get(one.table) != one]
            for one in changed:
                self._progress.pop(one.table, None)
                self._followed.pop(one.table, None)
            if self._baselines and changed:
                # A target that was replaced is behind again: at what LOG held when its baseline began.
                again = ledger.read_stored(self._paths.stored, min(one.after for one in changed))
                known = {b.upto: b for b in [*again, *self._stored]}
                self._stored = [known[upto] for upto in sorted(known)]
            self._baselines = fresh
            self._gate.refresh(fresh)
            if self._loads is not None:
                self._loads.refresh(fresh, self._gate.moving)
            return
        self._gate.refresh(self._baselines)
        if self._loads is not None:
            self._loads.look(self._baselines, self._gate.moving)
