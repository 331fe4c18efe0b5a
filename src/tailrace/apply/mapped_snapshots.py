"""Baselines of mapped tables: their rows land in a staging table and go through the mapping to the target.

Capture has no JVM, so it cannot map rows. It lands them under `<home>/staging` (`staging.py`); apply, before
it takes the table's changes, replaces the target (of several sources: this one's rows; `Target.load`), notes
that in the control table `mapped`, and removes the staging table. A crash in between does it again, to the
same end. One that orders have superseded is left alone: its target belongs to whoever carries them out.

`mapped` says which mapping a target was made with; one that has become another since waits for a new
baseline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ..errors import BaselineNeededError, from_spark
from ..execution import Job
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..model.types import schema_of
from ..state import commands, lifecycle
from ..state.baselines import Baseline
from ..state.declarations import MAPPED_LOADS
from ..state.lifecycle import TableStates
from ..state.state_table import StateTable
from ..targets.parts import BASELINE, Parts
from ..targets.projection import Projection
from ..targets.rule_columns import added_by, rules_of
from .baseline_staging import Staging
from .mapping.mapped import rows
from .mapping.prepare import projection_of
from .mapping.table_map import STAGED_FOR
from .route import Routes
from .scheduler import Scheduler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config.task import Task
    from ..targets.base import Target

logger = logging.getLogger("tailrace.apply")
CHANGED = "its mapping is another one than its target was made with: `tailrace resync` makes it anew"


def loaded(path: str) -> dict[str, tuple[int, str, int]]:
    """Of each mapped table the newest load: the baseline's number, the mapping's digest, the version."""
    return _loads(path).latest()


def noted(path: str, table: str, load: tuple[int, str, int]) -> None:
    """Records a load, as `loaded` returns it."""
    number, digest, version = load
    _loads(path).append([{"table": table, "baseline": number, "digest": digest, "version": version}])


def _loads(path: str) -> StateTable[tuple[int, str, int]]:
    return StateTable(path, MAPPED_LOADS, lambda row: (row["baseline"], row["digest"], row["version"]))


def made_with(digest: str, baseline: Baseline, found: Mapping[str, tuple[int, str, int]]) -> bool | None:
    """Whether a target was made with the mapping of that digest; None: its baseline waits in staging.

    `found`: from `loaded`.
    """
    if waits_in_staging(baseline, found):
        return None
    number, mine, _ = found.get(baseline.table, (0, "", 0))
    # One that was not staged landed in its target as it was.
    return mine == digest if number == baseline.number else not digest


def waits_in_staging(baseline: Baseline, found: Mapping[str, tuple[int, str, int]]) -> bool:
    """Whether a baseline is not in its target yet, because it is still to be mapped; `found` as in
    `made_with`."""
    return baseline.version is None and found.get(baseline.table, (0, "", 0))[0] != baseline.number


class MappedSnapshotLoader:
    """Sees to it that targets are made with the mapping that holds now.

    Args:
        spark: the session.
        routes: the task's mappings.
        target: where to.
        staging: the staging tables.
        record: path of `mapped`.
        orders: the task's orders.
        rule_columns: columns that the rules of a table add to its target, and their types.
    """

    def __init__(
        self,
        spark: SparkSession,
        routes: Routes,
        target: Target,
        *,
        staging: Staging,
        record: str,
        orders: str,
        rule_columns: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._spark, self._routes, self._target = spark, routes, target
        self._staging, self._record, self._orders = staging, record, orders
        self._rule_columns = rule_columns
        self._loaded = loaded(record)
        self._waiting: set[str] = set()
        self._refused: dict[str, tuple[tuple[int, str], str]] = {}
        self._failed: set[str] = set()  # tried again while the scheduler says so

    @staticmethod
    def of(task: Task, spark: SparkSession, target: Target, routes: Routes) -> MappedSnapshotLoader:
        """A task's."""
        return MappedSnapshotLoader(
            spark,
            routes,
            target,
            staging=Staging(task.staging_path),
            record=task.control_path("mapped"),
            orders=task.commands_path,
            rule_columns=lambda table: added_by(rules_of(task, table)),
        )

    @property
    def done(self) -> Mapping[str, tuple[int, str, int]]:
        """The newest load of each mapped table, as `loaded` gives it."""
        return self._loaded

    def ready(self, table: str) -> bool:
        """Whether the target holds a baseline made with the mapping that holds now."""
        return table not in self._waiting

    def look(self, baselines: Mapping[str, Baseline], scheduler: Scheduler) -> None:
        """Suspends again what was resumed, and still cannot go on; tries again what failed. Superseded ones
        wait for a baseline to come."""
        if any(not scheduler.superseded(t) for t in self._waiting):
            self.refresh(baselines, scheduler)

    def refresh(self, baselines: Mapping[str, Baseline], scheduler: Scheduler) -> None:
        """Takes in new baselines, but not of tables whose target is moving, nor superseded ones; suspends
        tables whose mapping has changed. What cannot be loaded is reported to the scheduler, and tried
        again when the table is due.

        Raises:
            TailraceError: a baseline could not be loaded, and that ends the task.
        """
        self._waiting, moving = set(baselines), {t for t in baselines if scheduler.moving(t)}
        for table, one in baselines.items():
            made_of = (one.number, self._routes.map(table).digest)
            refused = self._refused.get(table, (None, ""))[0] == made_of
            if refused or table in moving or (table in self._failed and not scheduler.is_due(table)):
                continue
            try:
                if self._made(table, one, superseded=scheduler.superseded(table)):
                    self._waiting.discard(table)
                if table in self._failed:
                    self._failed.discard(table)
                    scheduler.applied(table)
            except BaselineNeededError as error:
                self._refused[table] = made_of, error.what
            except Exception as error:  # noqa: BLE001 - the scheduler is asked
                where = f"baseline of {table}"
                if known := self._routes.value_error(table, error, where=where):
                    self._refused[table] = made_of, f"{known.what}; {known.hint}"
                else:
                    self._failed.add(table)
                    scheduler.failed(table, from_spark(error, where=where))
        # Nobody has looked at those.
        left = {t for t in self._waiting - self._failed - moving if not scheduler.superseded(t)}
        states = lifecycle.of_task(self._orders, baselines) if left else TableStates()
        for table in sorted(left):
            state = states[table]
            if not (state.held or state.superseded or state.moving):
                commands.suspend(
                    self._orders, table, self._refused.get(table, (None, CHANGED))[1], who="mapping"
                )

    def _made(self, table: str, baseline: Baseline, *, superseded: bool) -> bool:
        digest = self._routes.map(table).digest
        if (fits := made_with(digest, baseline, self._loaded)) is not None:
            return fits
        staged = self._staging.path(table, baseline.number)
        if superseded or _digest(staged) != digest:
            return False
        version = self._load(table, baseline, staged)
        noted(self._record, table, (baseline.number, digest, version))
        self._loaded[table] = (baseline.number, digest, version)
        reach("apply.staging")
        self._staging.done(table, baseline.number)
        return True

    def _load(self, table: str, baseline: Baseline, path: str) -> int:
        made = self._routes.prepared(table, self._routes.landed(baseline))
        assert made is not None  # noqa: S101 - it has a digest
        more = self._rule_columns(table)
        projection = projection_of([made])
        if projection is not None and self._target.loads_parts(table):
            read = StagedRows(path, projection, schema_of(made.relation.columns))
            job = Job(
                "baseline", f"baseline {table}: {baseline.rows:,} rows through its mapping", baseline.rows
            )
            return self._target.load(made.relation, read.parts(self._spark, job), baseline.after, more)
        staged = self._spark.read.format("delta").load(path)
        return self._target.load(made.relation, rows(staged, made), baseline.after, more)


@dataclass(frozen=True)
class StagedRows:
    """The rows of a staging table through a mapping without expressions: columns in `schema`'s types."""

    path: str
    projection: Projection
    schema: pa.Schema

    def parts(self, session: SparkSession | None = None, job: Job = BASELINE) -> Parts:
        """Its files, each read by the task that needs it."""
        return Parts(tuple(lake.paths(DeltaTable(self.path))), self.read, session, job)

    def read(self, file: str) -> Iterator[pa.RecordBatch]:
        """The rows of a file."""
        fs, name = lake.filesystem(file)
        with pq.ParquetFile(name, filesystem=fs, buffer_size=1 << 20) as one:
            for batch in one.iter_batches(use_threads=False):
                columns = [self.projection.column(batch, f) for f in self.schema]
                yield pa.record_batch(columns, schema=self.schema)


def _digest(staging: str) -> str | None:
    if not lake.exists(staging):
        return None
    found = [h[STAGED_FOR] for h in DeltaTable(staging).history(20) if STAGED_FOR in h]
    return str(found[0]) if found else None
