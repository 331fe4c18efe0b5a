"""The Spark half of a task: two loops, read it to see everything happen in order.

    LOG --store--> CHANGE TABLES, TRACKING --apply--> TARGETS

Both are Structured Streaming queries with foreachBatch: store over LOG, apply over TRACKING. The queries give
cadence, restart and progress; exactness comes from positions kept in the tables themselves, so a batch that
is replayed, or a checkpoint that is lost, changes nothing.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from ..apply.applier import Applier
from ..apply.cadence import Cadence
from ..apply.exceptions import Orders
from ..apply.gate import Ordered
from ..apply.keylog import KeyLog
from ..apply.loading import Loads
from ..apply.needs import Needs
from ..apply.openedge_tables import OpenEdgeTables
from ..apply.reading import ApplyPaths
from ..apply.route import Routes
from ..apply.shared import Place
from ..apply.table_map import place_of, task_map
from ..apply.targets.base import Target
from ..apply.targets.delta import DeltaTarget
from ..apply.targets.postgresql import PostgresTarget
from ..apply.task_rules import TableRules, TaskRules, rules_of
from ..capture import incremental_snapshot
from ..config import state_version
from ..config.policies import MEDIUM
from ..config.task import Task
from ..errors import ConfigError, TailraceError, from_spark
from ..lake import delta as lake
from ..lake import guards, json_files, log
from ..operate.task_runs import TaskRuns
from ..state import ledger, live
from ..state.orders import of_task
from ..state.upgrades import upgrade
from ..store import gaps, tracking
from ..store.writer import Store, StorePaths
from .counts import Counts
from .maintenance import Maintenance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("tailrace.pipeline")
STATE_EVERY_S = 1.0


class Pipeline:
    """Store and apply of one task in one Spark session."""

    def __init__(self, task: Task, spark: SparkSession, *, stop: threading.Event | None = None) -> None:
        self._task, self._spark = task, spark
        state_version.begin(task.home)
        refuse_lowered(task)
        self.stop = stop or threading.Event()
        lake.create(task.log_path, log.SCHEMA, log.PROPERTIES)
        lake.create(task.tracking_path, tracking.SCHEMA)
        lake.create(task.relations_path, log.RELATIONS_SCHEMA)
        self._store = Store(store_paths(task), keep_bad=task.on_bad_value == "quarantine")
        self._gate = Ordered(task.orders_path, task.control_path("errors"), task.groups)
        self._target = target_of(task, spark, self._gate.names)
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
            gate=self._gate,
            rules=task_rules(task, spark, self._target, self._runs),
            routes=routes,
            loads=Loads.of(task, spark, self._target, routes),
        )
        self._cadence: Cadence | None = None
        self._maintenance = Maintenance(task, self._target)
        self._openedge = OpenEdgeTables(task, spark) if task.store.openedge else None
        self._seen = Counts()
        self._failed: TailraceError | None = None

    def drain(self) -> None:
        """Stores and applies everything that is in LOG now, then returns."""
        self._gate.patient = False
        with live.lock(self._task.run_path, "pipeline"), self._runs.until_end():
            upgrade(self._task)
            for make in (self._store_query, self._apply_query):
                self._finish(make(once=True))
            # A baseline may have ended after the last tracking row was written: nothing would trigger it.
            self._catch_up()
            while self._gate.failing and not self.stop.wait(0.2):
                self._catch_up()
            if self._maintenance.due():
                self._maintenance.run()
            self._tell("drained")

    def run(self) -> None:
        """Stores and applies until `stop` is set; the first failure of a query ends both and is raised."""
        apply = self._task.apply
        self._cadence = Cadence(apply.every, apply.within, apply.max_changes, apply.max_bytes)
        with live.lock(self._task.run_path, "pipeline"), self._runs.until_end():
            upgrade(self._task)
            queries = [self._store_query(once=False), self._apply_query(once=False)]
            try:
                while not self.stop.wait(STATE_EVERY_S):
                    guards.check()
                    for query in queries:
                        if not query.isActive:
                            self._finish(query)
                    self._tell("running")
                    self._catch_up(wait=False)  # what is told, the newest order too, is never old
                    self._runs.note()
                    if self._maintenance.due():
                        self._maintenance.run()
            finally:
                for query in queries:
                    query.stop()
            self._tell("stopped")

    def _store_query(self, *, once: bool) -> StreamingQuery:
        task, before = self._task, self._store.reached
        reached = self._store.begin()
        if reached != before:  # the checkpoint points at what is gone
            shutil.rmtree(task.checkpoint_path("store"), ignore_errors=True)
        records = (
            self._spark.readStream.format("delta")
            # Only without a checkpoint; and not from a snapshot, whose files come in no order of commits.
            .option("startingVersion", log.version_after(task.log_path, reached))
            .option("maxBytesPerTrigger", task.store.max_bytes)
            .option("ignoreDeletes", "true")  # retention takes whole files away, long after they were read
            .load(task.log_path)
        )
        return self._start(records, "store", self._store_batch, task.store.every, once=once)

    def _apply_query(self, *, once: bool) -> StreamingQuery:
        task = self._task
        rows = (
            self._spark.readStream.format("delta")
            .option("startingVersion", lake.version(task.tracking_path))
            .option("ignoreDeletes", "true")
            .load(task.tracking_path)
        )
        return self._start(rows, "apply", self._apply_batch, task.apply.every, once=once)

    def _start(self, rows: DataFrame, name: str, batch: Any, every: float, *, once: bool) -> StreamingQuery:
        writer = (
            rows.writeStream.queryName(f"tailrace {name}: {self._task.name}")
            .option("checkpointLocation", self._task.checkpoint_path(name))
            .foreachBatch(batch)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(every * 1000)} milliseconds").start()

    def _finish(self, query: StreamingQuery) -> None:
        """Waits for a query's end and raises what ended it, if anything did."""
        try:
            query.awaitTermination()
        except Exception as error:
            # Our own function's error, as it was; Spark hands it on as text.
            where = f"{query.name}"
            raise self._failed or gaps.unreadable(error, where) or from_spark(error, where=where) from error

    def _store_batch(self, records: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        with self._failing():
            if (stored := self._store.batch(records)) is not None:
                self._applier.add(stored)
                self._seen.stored(stored, time.monotonic() - began)
            if self._openedge is not None:
                self._openedge.catch_up()

    def _apply_batch(self, tracked: DataFrame, batch_id: int) -> None:
        with self._failing():
            # What to apply follows from positions; these rows only say that something is there.
            self._catch_up()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = from_spark(error, where=self._task.name)
            raise

    def _catch_up(self, *, wait: bool = True) -> None:
        began = time.monotonic()
        done = self._applier.catch_up(self.stop, self._cadence, wait=wait)
        self._seen.applied(done, time.monotonic() - began)

    def counted(self) -> dict[str, Any]:
        """What store and apply have done since this process began (`Counts.as_dict`)."""
        return self._seen.as_dict()

    def _tell(self, state: str) -> None:
        json_files.write(
            self._task.run_path,
            "pipeline",
            {"state": state, "applied": self._applier.recorded, "orders": self._gate.orders}
            | self._seen.as_dict(),
        )


def refuse_lowered(task: Task) -> None:
    """Raises ConfigError when a policy below level 2 would leave a target standing where it is."""
    taken = ledger.read_baselines(task.control_path("baselines"))
    states = of_task(task.orders_path, taken)
    kept = [t for t in sorted(taken) if t not in states or states[t].member != "removed"]
    if lowered := [t for t in kept if task.policy(t).level < MEDIUM]:
        level = task.policy(lowered[0]).level
        raise ConfigError(
            f"{', '.join(lowered)} has a target, which level {level} would not keep up",
            where=f"policies of {task.name}",
            hint="leave it at level 2 or 3, or capture it in a task of its own",
        )


def target_of(task: Task, spark: SparkSession, named: Mapping[str, str]) -> Target:
    """The task's target: a database when it names one, else Delta tables. `named`: what targets are called
    that have other names than their tables; it may change."""
    maps = cache(lambda table: task_map(task, table))

    def places(table: str) -> Place:
        return place_of(maps(table), named)

    if task.target.database:
        return PostgresTarget(
            spark,
            task.target.database,
            task=task.name,
            memory_bytes=task.apply.merge_memory,
            places=places,
        )
    return DeltaTarget(
        spark,
        task.target.path,
        app_id=task.apply_app,
        local_limit_bytes=task.target.local_limit,
        merge_memory_bytes=task.apply.merge_memory,
        places=places,
    )


def task_rules(task: Task, spark: SparkSession, target: Target, runs: TaskRuns) -> TaskRules:
    """The rules of the task's tables, and its key log with their runs."""
    keylog = KeyLog(task.keylog_path, app_id=task.name, run_id="", mode=task.keylog.mode, at_once=False)

    def of_table(table: str) -> TableRules:
        return TableRules(rules_of(task, table), bool(task.table(table).transactional))

    return TaskRules(
        spark,
        target,
        of_table,
        root=f"{task.home}/control",
        task=task.name,
        app_id=task.apply_app,
        keylog=keylog,
        suspensions=Orders(task.orders_path),
        runs=runs.begin,
        tokens=lambda: incremental_snapshot.seen(task.control_path("tokens")),
    )


def store_paths(task: Task) -> StorePaths:
    """Where the task's store reads and writes."""
    return StorePaths(
        task.relations_path,
        task.tracking_path,
        task.control_path("stored"),
        task.control_path("quarantine"),
        task.changes_path,
        task.policy,
        task.log_path,
        lambda: Needs(task).passed(log.history(task.relations_path)),
    )


def apply_paths(task: Task) -> ApplyPaths:
    """Where the task's applier reads and writes."""
    return ApplyPaths(
        task.relations_path,
        task.control_path("stored"),
        task.control_path("applied"),
        task.control_path("baselines"),
        task.changes_path,
    )
