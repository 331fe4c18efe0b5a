"""The pipeline of a task: two loops that store and apply changes.

    LOG --store--> CHANGE TABLES, TRACKING --apply--> TARGETS

Each loop has its own thread. Store reads new commits of LOG and notifies apply of what it has stored; apply
merges the changes into targets at the task's cadence. All progress is recorded in the tables themselves, so a
restarted process continues from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..apply.applier import Applier
from ..apply.cadence import Cadence
from ..apply.checks.filled_targets import refuse_lowered
from ..apply.checks.target import waits
from ..apply.mapped_snapshots import MappedSnapshotLoader
from ..apply.mapping.table_map import place_of, task_map
from ..apply.reading import ApplyPaths
from ..apply.required_changes import Needs
from ..apply.route import Routes
from ..apply.scheduler import Scheduler
from ..apply.task_rules import TableRules, TaskRules
from ..apply.vendor.openedge_tables import OpenEdgeTables
from ..capture import incremental_snapshot
from ..config import state_version
from ..config.task import Task
from ..errors import CancelledError, SparkLostError, TailraceError, from_spark
from ..execution import JobCount, background, counted
from ..keylog.control_tables import SuspendCommands
from ..keylog.key_log import KeyLog
from ..lake import delta as lake
from ..lake import guards, json_files, log, news
from ..lake.objects import pace
from ..model.steps import Steps
from ..operate.keylog_runs import TaskRuns
from ..operate.table_commands import tables_of
from ..sources import open_source
from ..state import live
from ..state.capture_state import RUNNING, STARTING, STOPPED
from ..state.layouts import policy
from ..state.open_warnings import PIPELINE, OpenWarnings
from ..store import tracking
from ..store.log_files import LogFiles
from ..store.running import runner
from ..store.unstorable import TableSuspensions
from ..store.writer import Store, StorePaths
from ..targets.base import Target
from ..targets.delta.target import DeltaTarget
from ..targets.lake.target import LakeTarget
from ..targets.multi_source import TargetLocation
from ..targets.postgresql.target import PostgresTarget
from ..targets.rule_columns import rules_of
from ..targets.task_tables import iceberg_tables, physical_layout
from ..validate.repair import Repair
from ..validate.sessions import Sessions
from ..validate.validation import validate
from .counts import Counts
from .freshness import FreshnessControl
from .maintenance import Maintenance
from .reconnecting import Reconnecting
from .repair_requests import Options as RepairOptions
from .repair_requests import Outcome, RepairRequests, repair_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_EVERY_S = 1.0
STORE_EVERY_S = 0.2
"""Seconds between two checks for new commits of LOG; each checks whether one file exists."""


class Pipeline:
    """Store and apply of one task in one Spark session."""

    def __init__(self, task: Task, spark: SparkSession, *, stop: threading.Event | None = None) -> None:
        self._task, self._spark = task, spark
        state_version.begin(task.home)
        refuse_lowered(task)
        self.stop = stop or threading.Event()
        self._background = background(spark)
        if self._background is not None:
            self._background.cancel_when(self.stop)
        lake.create(task.log_path, log.SCHEMA, log.PROPERTIES)
        lake.create(task.tracking_path, tracking.SCHEMA)
        lake.create(task.relations_path, log.RELATIONS_SCHEMA)
        self._store = Store(store_paths(task), suspend=TableSuspensions(task))
        self.freshness = FreshnessControl(task, self._lake_path, lambda: _baseline_steps(counted()))
        self._scheduler = Scheduler(
            task.commands_path,
            task.control_path("errors"),
            task.groups,
            interval=self.freshness.interval_of_table,
            automatic=task.automatic_baseline,
            known=lambda: tables_of(task),
        )
        self._target = target_of(task, spark, self._scheduler.names)
        self._runs = TaskRuns(task)
        routes = Routes.of(task, spark)
        self._applier = Applier(
            spark,
            apply_paths(task),
            self._target,
            max_changes=task.apply.max_changes,
            max_bytes=task.apply.max_bytes,
            parallel=task.apply.parallel_tables,
            need_baseline=task.baseline.enabled,
            scheduler=self._scheduler,
            rules=task_rules(task, self._target, self._runs),
            routes=routes,
            loads=MappedSnapshotLoader.of(task, spark, self._target, routes),
        )
        self._maintenance = Maintenance(task, self._target)
        self._openedge = OpenEdgeTables(task, spark) if task.store.openedge else None
        self._counts = Counts()
        self._failed: TailraceError | None = None
        self._over, self._wake_apply = threading.Event(), threading.Event()
        self._store_lock, self._maintenance_lock = threading.Lock(), threading.Lock()
        self._repairs = RepairRequests(task, self._repaired, self._over)
        self._reconnecting = Reconnecting(self._over, lambda: waits(task))
        self._files: LogFiles

    def drain(self, then: Callable[[], None] = lambda: None) -> None:
        """Stores and applies everything that is in LOG now, calls `then`, and returns."""
        self._scheduler.patient = False
        with live.lock(self._task.run_path, "pipeline"), self._runs.until_end(), self._errors_reported():
            self._write_state(STARTING)  # replaces the state that an earlier process wrote
            self.store_all()
            self._catch_up()
            while self._scheduler.failing and not self.stop.wait(0.2):
                self._catch_up()
            if self._background is not None:
                self._background.check()  # raises its error, although the driver has done all the work
            if self._maintenance.due():
                self._maintenance.run()
            then()
            self._write_state("drained")

    def store_all(self) -> None:
        """Stores everything that is in LOG now."""
        news.check_now()
        self._find_log_files()
        end = log.state(self._task.log_path).number
        while self._store.reached < end and not self.stop.is_set() and self._store_next():
            pass

    def run(self) -> None:
        """Stores and applies until `stop` is set; raises the first failure of a loop, which ends both."""
        with live.lock(self._task.run_path, "pipeline"), self._runs.until_end(), self._errors_reported():
            self._write_state(STARTING)  # replaces the state that an earlier process wrote
            self._find_log_files()
            loops = [
                threading.Thread(target=self._loop, args=(work,), name=name, daemon=True)
                for name, work in (("store", self._storing), ("apply", self._applying))
            ]
            for one in loops:
                one.start()
            try:
                slower, last = pace(self._task.run_path), -STATE_EVERY_S
                while not self.stop.wait(STATE_EVERY_S) and self._failed is None:
                    if time.monotonic() - last < STATE_EVERY_S * slower - STATE_EVERY_S / 2:
                        continue
                    last = time.monotonic()
                    guards.check()
                    if self._background is not None:
                        self._background.check()
                    self.freshness.adapt()
                    self._write_state(RUNNING)
                    self._runs.note()
                    self._maintain()
                    self._repairs.start_next()
            finally:
                self._end()
                self._repairs.join()
                for one in loops:
                    one.join()
            if self._failed is not None:
                raise self._failed
            self._write_state(STOPPED)

    def _maintain(self) -> None:
        """Runs maintenance if it is due, unless targets are being repaired."""
        if not self._maintenance_lock.acquire(blocking=False):
            return
        try:
            self._maintenance.compact()
            if self._maintenance.due():
                self._maintenance.run()
        finally:
            self._maintenance_lock.release()

    def _repaired(self, options: RepairOptions, steps: Steps) -> Outcome:
        """Repairs targets of this task between batches."""
        task, sessions = self._task, Sessions(self._background or self._spark, steps)
        repair = Repair(task, sessions, options.dry_run, steps, held=self._loops_paused, who=options.who)
        with closing(open_source(task)) as source:
            return repair_with(repair, partial(validate, task, sessions, source, steps=steps), options)

    @contextmanager
    def _loops_paused(self) -> Iterator[None]:
        """Applies all that was stored; within the block nothing is stored, applied or compacted."""
        with self._maintenance_lock, self._store_lock:
            self._scheduler.hurry()
            self._catch_up()
            with self._applier.held():
                yield

    def _find_log_files(self) -> None:
        """Checks the store's progress, and finds the files of LOG that are still to be stored."""
        if self._openedge is not None:
            self._openedge.catch_up()  # before LOG is checked for gaps; a crash may have interrupted it
        self._files = LogFiles(self._task.log_path, self._store.begin())

    def _end(self) -> None:
        self._over.set()
        self._wake_apply.set()

    def _loop(self, work: Callable[[], None]) -> None:
        try:
            work()
        except CancelledError:  # the task ends; the batch is repeated at the next start
            self._end()
        except BaseException as error:  # noqa: BLE001 - whatever ends a loop ends the task
            failed = from_spark(error, where=self._task.name)
            if failed is not error:
                failed.__cause__ = error
            self._failed = self._failed or failed
            self._end()

    def _storing(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            with self._store_lock:
                self._store_next()
            self._over.wait(max(STORE_EVERY_S - (time.monotonic() - began), 0.0))

    def _applying(self) -> None:
        apply = self._task.apply
        cadence = Cadence(lambda: self.freshness.interval, apply.max_changes, apply.max_bytes)
        while not self._over.is_set():
            self._wake_apply.clear()
            if not self._reconnecting(lambda: self._catch_up(cadence)):
                continue
            # Many changes need not wait until a batch is due, and commands are checked in the meantime.
            while (left := cadence.wait()) and not self._over.wait(min(left, STATE_EVERY_S)):
                self._reconnecting(lambda: self._catch_up(cadence))
                self._wake_apply.set()  # changes stored in the meantime may be due now
            self._wake_apply.wait(STATE_EVERY_S)

    def _store_next(self) -> bool:
        """Stores the next batch; False when there is nothing new in LOG."""
        began, task = time.monotonic(), self._task
        files = self._files.batch(self._store.reached, task.store.max_bytes)
        if not files:
            return False
        if (stored := self._store.batch(runner(task.log_path, files, self._spark))) is not None:
            self._applier.add(stored)
            self._counts.stored(stored, time.monotonic() - began)
            self.freshness.stored(stored, len(files))
            self._maintenance.stored(stored.tables)
            self._wake_apply.set()
        if self._openedge is not None:
            self._openedge.catch_up()
        return True

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        """Turns all errors into tailrace errors, and writes them to the live state."""
        with live.ending(lambda words: self._write_state(STOPPED, ended=words)):
            try:
                yield
            except TailraceError:
                raise
            except Exception as error:
                raise from_spark(error, where=self._task.name) from error

    def _catch_up(self, cadence: Cadence | None = None) -> None:
        """Applies the stored changes that are due."""
        began = time.monotonic()
        try:
            done = self._applier.catch_up(self.stop, cadence)
        except SparkLostError:
            if self._background is None or not self._background.replaced(self._task.name):
                raise
            return  # the batches are applied again, by the driver or the next session
        if any(one.flagged for one in done):
            self._runs.flagged()
        self._counts.applied(done, time.monotonic() - began)
        self.freshness.applied(done)

    def _lake_path(self, table: str) -> str | None:
        return self._target.path(table) if isinstance(self._target, LakeTarget) else None

    def counted(self) -> dict[str, Any]:
        """Returns the counters of store and apply since this process started (`Counts.as_dict`)."""
        return self._counts.as_dict()

    def _spark_state(self) -> dict[str, Any]:
        """Returns the session's state (`BackgroundSession.describe`) and, by kind of step, the number of
        jobs, tasks, and changes handled by Spark and by the driver."""
        session = {} if self._background is None else self._background.describe()
        return session | {"steps": {kind: asdict(one) for kind, one in counted().items()}}

    def _write_state(self, state: str, *, ended: str | None = None) -> None:
        json_files.write(
            self._task.run_path,
            "pipeline",
            {
                "state": state,
                "applied": self._applier.recorded,
                "commands": self._scheduler.command,
                "ended": ended,
            }
            | self._counts.as_dict()
            | {"spark": self._spark_state(), "freshness": self.freshness.describe()}
            | (self._reconnecting.reported_state if state == RUNNING else {}),
        )


def _baseline_steps(steps: Mapping[str, JobCount]) -> int:
    """Returns the number of jobs and tasks that have read baselines so far."""
    return sum(one.jobs + one.in_driver for kind, one in steps.items() if kind == "baseline")


def target_of(task: Task, spark: SparkSession, names: Mapping[str, str]) -> Target:
    """Returns the task's target: a database, or Iceberg or Delta tables.

    `names`: the names of targets that differ from their tables' names; it may change.
    """
    maps = cache(lambda table: task_map(task, table))

    def places(table: str) -> TargetLocation:
        return place_of(maps(table), names)

    if task.target.database:
        return PostgresTarget(
            spark,
            task.target.database,
            task=task.name,
            memory_bytes=task.apply.merge_memory,
            locations=places,
            at_once=task.apply.parallel_tables,
        )
    if task.target.type == "iceberg":
        from ..targets.iceberg.target import IcebergTarget

        return IcebergTarget(
            spark,
            iceberg_tables(task),
            app_id=task.apply_app,
            local_limit_bytes=task.target.one_task,
            merge_memory_bytes=task.apply.merge_memory,
            locations=places,
            physical=partial(physical_layout, task),
        )
    return DeltaTarget(
        spark,
        task.target.path,
        app_id=task.apply_app,
        local_limit_bytes=task.target.one_task,
        rewrite_bytes=task.target.rewrite_limit,
        merge_memory_bytes=task.apply.merge_memory,
        locations=places,
    )


def task_rules(task: Task, target: Target, runs: TaskRuns) -> TaskRules:
    """Returns the rules of the task's tables, with the key log and its runs."""
    keylog = KeyLog(task.keylog_path, app_id=task.name, run_id="", mode=task.keylog.mode, at_once=False)

    def of_table(table: str) -> TableRules:
        return TableRules(rules_of(task, table), bool(task.table(table).transactional))

    return TaskRules(
        target,
        of_table,
        root=f"{task.home}/control",
        task=task.name,
        keylog=keylog,
        suspensions=SuspendCommands(task.commands_path),
        runs=runs.begin,
        tokens=lambda: incremental_snapshot.read_tokens(task.control_path("tokens")),
        warned=OpenWarnings(task, PIPELINE).happened,
    )


def store_paths(task: Task) -> StorePaths:
    """Returns the paths that the task's store reads and writes."""
    return StorePaths(
        task.relations_path,
        task.tracking_path,
        task.control_path("stored"),
        task.control_path("quarantine"),
        task.changes_path,
        partial(policy, task),
        task.log_path,
        lambda: Needs(task).passed(log.history(task.relations_path)),
    )


def apply_paths(task: Task) -> ApplyPaths:
    """Returns the paths that the task's applier reads and writes."""
    return ApplyPaths(
        task.relations_path,
        task.control_path("stored"),
        task.control_path("applied"),
        task.control_path("baselines"),
        task.changes_path,
    )
