"""Targets whose tables are made of files: one table per source table, with the progress in its commits."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from ...errors import TailraceError
from ...lake.table import LakeTables
from ...model.change import Relation
from ...model.positions import ChangeNumber, order_key
from ...model.types import spark_type
from ..capabilities import Capabilities
from ..change_batch import ChangeBatch
from ..images import shaped
from ..merge_result import MergeResult
from ..multi_source import TargetLocation, rows_in_partition, with_target_types
from ..plans import Limits
from .merge import MergeTask, merge
from .multi_source import merge_rounds
from .sharded_merge import ShardedMerge, SparkPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEAST_MEMORY = 64 << 20
"""With less memory, a task could merge hardly any batch."""
_T = TypeVar("_T", bound=LakeTables)


class LakeTarget(Generic[_T]):
    """Applies changes to tables made of files; see `Target` for its promises. A subclass adds layouts, loads
    and maintenance of its format.

    Args:
        spark: the session of the batches' DataFrames; `merge` does not need one.
        tables: the tables of the format.
        app_id: the application id of the progress in the tables' commits.
        limits: the limits by which plans are chosen.
        memory_bytes: the memory that a task may use; a batch that needs more is merged by shards. None: no
            limit.
        locations: returns the location of a table's rows; None: each table has a target of its name.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: _T,
        *,
        app_id: str,
        limits: Limits,
        memory_bytes: int | None,
        locations: Callable[[str], TargetLocation] | None,
    ) -> None:
        self._locations, self._known = locations or TargetLocation, dict[str, TargetLocation]()
        self._spark, self._tables, self._app, self._limits = spark, tables, app_id, limits
        self._memory = None if memory_bytes is None else max(memory_bytes, LEAST_MEMORY)
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def capabilities(self) -> Capabilities:
        """The target has versions."""
        return Capabilities(versions=True, memory_bytes=self._memory)

    def location(self, table: str) -> TargetLocation:
        """Returns the location of a table's rows."""
        now = self._locations(table)
        if self._known.setdefault(table, now) != now:
            self._known[table] = now
            self._relocated()
        return now

    def _relocated(self) -> None:
        """Called when a name denotes another table than before."""

    def path(self, table: str) -> str:
        """Returns the name of the table, see `LakeTables`."""
        return self._tables.name(self.location(table).target)

    def app(self, table: str) -> str:
        """Returns the application id of the table's progress in the commits."""
        return self.location(table).app(table, self._app)

    def exists(self, table: str) -> bool:
        """Whether the target has the table."""
        return self._tables.exists(self.path(table))

    def progress(self, table: str) -> ChangeNumber | None:
        """Returns the last change number that was applied; None if nothing was applied."""
        path = self.path(table)
        if not self._tables.exists(path):
            return None
        with self._tables.opened(path) as now:
            return now.progress(self.app(table))

    def columns(self, table: str) -> dict[str, str]:
        """Returns the names and Spark SQL types of the columns."""
        with self._tables.opened(self.path(table)) as now:
            return {f.name: spark_type(f.type) for f in now.schema}

    def version_at(self, table: str, number: int) -> int | None:
        """Returns the newest version without later changes; None if it is not available any more."""
        path, app = self.path(table), self.app(table)
        now = self._tables.open(path)
        if order_key(now.progress(app)) == number:
            return now.version
        until = self._tables.open_until(path, app, number)
        return None if until is None else until.version

    def rows_with_keys(self, relation: Relation, keys: DataFrame) -> DataFrame:
        """Returns all rows of the source in the relation's columns and types."""
        rows = self._rows(self.path(relation.table))
        return shaped(rows_in_partition(rows, self.location(relation.table).partition), relation)

    def _rows(self, path: str) -> DataFrame:
        """Returns the rows of a table in Spark."""
        raise NotImplementedError

    def sweep(self, table: str) -> None:
        """Deletes old files that no version of the table has; killed processes leave them."""
        raise NotImplementedError

    def merge(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        """Merges batches: tables in parallel, batches of one target one after the other."""
        prepared = [self._prepared(batch) for batch in batches]
        found: dict[int, MergeResult | TailraceError] = {}
        for indices in merge_rounds(prepared):
            found |= zip(indices, self._merged([prepared[index] for index in indices]), strict=True)
        return [found[index] for index in range(len(prepared))]

    def _prepared(self, batch: ChangeBatch) -> ChangeBatch:
        """Returns the batch with the application id and, for a shared target, with the constants of the
        source and the types that other sources gave the columns."""
        partition = self.location(batch.table).partition
        prepared = replace(batch, app_id=self.app(batch.table), partition=partition)
        if not partition or not self.exists(batch.table):
            return prepared
        have = self.columns(batch.table)
        return replace(prepared, layout=with_target_types(batch.layout or batch.relation, have))

    def _merged(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        task = MergeTask(self._tables, self._limits, self._memory)
        with ExitStack() as locks:
            for path in sorted(b.target for b in batches):
                locks.enter_context(self._locks[path])
            sharded = ShardedMerge(self._tables, self._spark, self._limits, self._memory, self._spark_plan())
            return merge(self._spark, batches, task, sharded.merged)

    def _spark_plan(self) -> SparkPlan | None:
        """Returns the plan of Spark's MERGE; None if the format has none."""
        return None
