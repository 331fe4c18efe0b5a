"""Loads baselines of mapped tables: from a staging table, through the mapping, into the target.

Capture has no JVM, so it cannot map rows, and writes them to `<home>/staging` (`baseline_staging.py`). Before
apply applies changes of the table, it replaces the rows of the target (with several sources: the rows of this
one; `Target.load`), records that in the control table `mapped`, and removes the staging table. After a crash
all of it is repeated, with the same result. A baseline that commands have superseded is not loaded.

`mapped` records the mapping of each target. If the mapping is edited, the table waits for a new baseline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import BaselineNeededError, from_spark
from ..execution import Job
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..lake.opened import open_table
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
CHANGED = "its mapping has changed since its target was loaded: `tailrace resync` loads it again"


def loaded(path: str) -> dict[str, tuple[int, str, int]]:
    """The newest load of each mapped table: number of the baseline, digest of the mapping, version."""
    return _loads(path).latest()


def record_load(path: str, table: str, load: tuple[int, str, int]) -> None:
    """Records a load in the form that `loaded` returns."""
    number, digest, version = load
    _loads(path).append([{"table": table, "baseline": number, "digest": digest, "version": version}])


def _loads(path: str) -> StateTable[tuple[int, str, int]]:
    return StateTable(path, MAPPED_LOADS, lambda row: (row["baseline"], row["digest"], row["version"]))


def is_loaded_with(digest: str, baseline: Baseline, found: Mapping[str, tuple[int, str, int]]) -> bool | None:
    """Whether a target was loaded with the mapping of that digest; None if its baseline waits in staging.

    `found`: the result of `loaded`.
    """
    if waits_in_staging(baseline, found):
        return None
    number, mine, _ = found.get(baseline.table, (0, "", 0))
    # A baseline that was not staged was loaded without a mapping.
    return mine == digest if number == baseline.number else not digest


def waits_in_staging(baseline: Baseline, found: Mapping[str, tuple[int, str, int]]) -> bool:
    """Whether a baseline waits to be mapped, and is not in its target yet; `found` as in `is_loaded_with`."""
    return baseline.version is None and found.get(baseline.table, (0, "", 0))[0] != baseline.number


class MappedSnapshotLoader:
    """Loads staged baselines into their targets, and suspends tables whose mapping has changed.

    Args:
        spark: the session.
        routes: the task's mappings.
        target: the target.
        staging: the staging tables.
        record: path of `mapped`.
        commands_path: path of the task's commands.
        rule_columns: returns the columns that the rules of a table add to its target, with their types.
    """

    def __init__(
        self,
        spark: SparkSession,
        routes: Routes,
        target: Target,
        *,
        staging: Staging,
        record: str,
        commands_path: str,
        rule_columns: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._spark, self._routes, self._target = spark, routes, target
        self._staging, self._record, self._commands = staging, record, commands_path
        self._rule_columns = rule_columns
        self._loaded = loaded(record)
        self._waiting: set[str] = set()
        self._refused: dict[str, tuple[tuple[int, str], str]] = {}
        self._failed: set[str] = set()  # tried again when the scheduler says so

    @staticmethod
    def of(task: Task, spark: SparkSession, target: Target, routes: Routes) -> MappedSnapshotLoader:
        """The loader of a task."""
        return MappedSnapshotLoader(
            spark,
            routes,
            target,
            staging=Staging(task.staging_path),
            record=task.control_path("mapped"),
            commands_path=task.commands_path,
            rule_columns=lambda table: added_by(rules_of(task, table)),
        )

    @property
    def done(self) -> Mapping[str, tuple[int, str, int]]:
        """The newest load of each mapped table, as `loaded` returns it."""
        return self._loaded

    def ready(self, table: str) -> bool:
        """Whether the target has a baseline that was loaded with the present mapping."""
        return table not in self._waiting

    def retry(self, baselines: Mapping[str, Baseline], scheduler: Scheduler) -> None:
        """Tries again the loads that failed, and suspends again the resumed tables that cannot continue.
        Tables with a superseded baseline wait for the next one."""
        if any(not scheduler.superseded(t) for t in self._waiting):
            self.refresh(baselines, scheduler)

    def refresh(self, baselines: Mapping[str, Baseline], scheduler: Scheduler) -> None:
        """Loads new baselines, and suspends tables whose mapping has changed.

        Superseded baselines, and those of tables whose target is being renamed, are not loaded. If a load
        fails, the scheduler decides when it is tried again.

        Raises:
            TailraceError: a baseline could not be loaded, and that ends the task.
        """
        self._waiting, moving = set(baselines), {t for t in baselines if scheduler.moving(t)}
        for table, one in baselines.items():
            load = (one.number, self._routes.map(table).digest)
            refused = self._refused.get(table, (None, ""))[0] == load
            if refused or table in moving or (table in self._failed and not scheduler.is_due(table)):
                continue
            try:
                if self._is_loaded(table, one, superseded=scheduler.superseded(table)):
                    self._waiting.discard(table)
                if table in self._failed:
                    self._failed.discard(table)
                    scheduler.applied(table)
            except BaselineNeededError as error:
                self._refused[table] = load, error.what
            except Exception as error:  # noqa: BLE001 - the scheduler is asked
                where = f"baseline of {table}"
                if known := self._routes.value_error(table, error, where=where):
                    self._refused[table] = load, f"{known.what}; {known.hint}"
                else:
                    self._failed.add(table)
                    scheduler.failed(table, from_spark(error, where=where))
        left = {t for t in self._waiting - self._failed - moving if not scheduler.superseded(t)}
        states = lifecycle.of_task(self._commands, baselines) if left else TableStates()
        for table in sorted(left):
            state = states[table]
            if not (state.held or state.superseded or state.moving):
                commands.suspend(
                    self._commands, table, self._refused.get(table, (None, CHANGED))[1], who="mapping"
                )

    def _is_loaded(self, table: str, baseline: Baseline, *, superseded: bool) -> bool:
        """Whether a target has the baseline through the present mapping. Loads it from staging if it can."""
        digest = self._routes.map(table).digest
        if (fits := is_loaded_with(digest, baseline, self._loaded)) is not None:
            return fits
        staged = self._staging.path(table, baseline.number)
        if superseded or _digest(staged) != digest:
            return False
        version = self._load(table, baseline, staged)
        record_load(self._record, table, (baseline.number, digest, version))
        self._loaded[table] = (baseline.number, digest, version)
        reach("apply.staging")
        self._staging.done(table, baseline.number)
        return True

    def _load(self, table: str, baseline: Baseline, path: str) -> int:
        mapping = self._routes.prepared(table, self._routes.landed(baseline))
        assert mapping is not None  # noqa: S101 - it has a digest
        more = self._rule_columns(table)
        projection = projection_of([mapping])
        if projection is not None and self._target.loads_parts(table):
            read = StagedRows(path, projection, schema_of(mapping.relation.columns))
            job = Job(
                "baseline", f"baseline {table}: {baseline.rows:,} rows through its mapping", baseline.rows
            )
            return self._target.load(mapping.relation, read.parts(self._spark, job), baseline.after, more)
        staged = self._spark.read.format("delta").load(path)
        return self._target.load(mapping.relation, rows(staged, mapping), baseline.after, more)


@dataclass(frozen=True)
class StagedRows:
    """The rows of a staging table, mapped by a projection to the columns and types of `schema`."""

    path: str
    projection: Projection
    schema: pa.Schema

    def parts(self, session: SparkSession | None = None, job: Job = BASELINE) -> Parts:
        """Its files, each read by the task that needs it."""
        return Parts(tuple(lake.paths(open_table(self.path))), self.read, session, job)

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
    found = [h[STAGED_FOR] for h in open_table(staging).history(20) if STAGED_FOR in h]
    return str(found[0]) if found else None
