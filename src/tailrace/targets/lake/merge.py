"""Merges batches of several tables in one job: one task per table, or shards of large batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import ConcurrentCommitError, TailraceError, from_spark, raised_in_task
from ...execution import Job, executor_of, map_tasks, slots
from ...lake.table import LakeTable, LakeTables, open_at
from ...model.positions import order_key
from ..audit import RESULT_LOST
from ..change_batch import ChangeBatch
from ..merge_result import ApplyOutcome, MergeResult
from ..plans import Limits, TableSize, is_local
from .task_local_merge import TaskLocalMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000_000
"""Batches with more changes are merged by shards. So are batches that need more memory than a task has, which
is only known after they are read."""
SHARD_BYTES = 128 << 20
"""Batches of tables with fewer bytes are not divided into shards to save time."""
SHARD_COST = 2
"""The approximate ratio of the work of all shards of a batch to that of one task."""


@dataclass(frozen=True)
class MergeTask:
    """Merges the batch of one table.

    Returns the result, or the error of a table whose changes were not applied. None: the batch has to be
    merged by shards, because nothing was done or the result was lost.

    Attributes:
        tables: the tables of the target's format.
        limits: the task may rewrite at most `limits.local_bytes`, in tables of any size.
        memory_bytes: the memory that the task may use; None: no limit.
        sharded: the tables that are merged by shards if they have more than `SHARD_BYTES`.
    """

    tables: LakeTables
    limits: Limits
    memory_bytes: int | None
    sharded: frozenset[str] = frozenset()

    def __call__(self, one: ChangeBatch) -> MergeResult | TailraceError | None:
        began = time.monotonic()
        try:
            done = self._merged(one)
        except ConcurrentCommitError:
            return None  # the batch is read again
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables continue
            return raised_in_task(error, f"apply {one.table}")
        if done == RESULT_LOST and one.audit is None:
            done = MergeResult(ApplyOutcome(version=self.tables.open(one.target).version), one.range.end)
        if not isinstance(done, MergeResult):
            return None
        return replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))

    def _merged(self, one: ChangeBatch) -> MergeResult | str | None:
        """Returns the result of a `TaskLocalMerge`; None if one task cannot merge the batch."""
        if not self.tables.exists(one.target):
            return None
        if one.log_only:
            return self._by(one.located(), open_at(self.tables, one.target, one.app_id, one.range.lower))
        with self.tables.opened(one.target) as table:
            return self._by(one.located(), table)

    def _by(self, one: ChangeBatch, table: LakeTable) -> MergeResult | str | None:
        # The cost of an append does not depend on the table's size.
        if not (one.appends or self._may_scan(one, table)) or not table.replaces_files:
            return None
        progress = order_key(table.progress(one.app_id))
        if progress >= one.range.end and not one.log_only:
            return RESULT_LOST
        if one.audit is not None and one.range.lower < progress < one.range.end:
            return None  # the key log has to be completed first
        if {c.name for c in one.target_columns} - set(table.schema.names):
            return None
        return TaskLocalMerge(
            one, self.tables, table, progress, self.memory_bytes, self.limits.local_bytes
        ).run()

    def _may_scan(self, one: ChangeBatch, table: LakeTable) -> bool:
        """Whether one task may scan the table for the rows of the changes."""
        size = TableSize.of(table)
        if one.table in self.sharded and size.bytes > SHARD_BYTES and one.rows is None:
            return False
        if is_local(size, self.limits):
            return True
        smallest = min((file["size_bytes"] for file in table.data_files()), default=0)
        return not size.vectors and smallest <= self.limits.local_bytes


def merge(
    spark: SparkSession | None,
    batches: Sequence[ChangeBatch],
    task: MergeTask,
    by_shards: Callable[[ChangeBatch], MergeResult],
) -> list[MergeResult | TailraceError]:
    """Merges all batches in one job; then, one after the other, those that are too large for one task, by
    shards.

    Args:
        spark: the session whose tasks may merge; None: threads of this process do.
        batches: the batches.
        task: merges a batch by one task.
        by_shards: merges a batch by shards.

    Returns:
        For each batch, in their order, the result, or the error of a table whose changes were not applied.
    """
    weights = [one.size for one in batches]
    single = [n for n, one in enumerate(batches) if weights[n] <= ROWS or one.rows is not None]
    found: dict[int, MergeResult | TailraceError | None] = {}
    if single:
        results = _in_one_job(spark, [batches[n] for n in single], [weights[n] for n in single], task)
        found |= zip(single, results, strict=True)
    return [found.get(n) or _sharded(one, by_shards) for n, one in enumerate(batches)]


def _in_one_job(
    spark: SparkSession | None, batches: Sequence[ChangeBatch], weights: Sequence[int], task: MergeTask
) -> list[MergeResult | TailraceError | None]:
    if any(one.rows is not None for one in batches):
        spark = None  # the rows are in the driver
    # Batches for which one task would need more time than shards on all slots are divided into shards.
    executor = executor_of(spark, sum(weights))
    most = SHARD_COST * sum(weights) / slots(executor)
    large = (one.table for one, weight in zip(batches, weights, strict=True) if weight > most)
    task = replace(task, sharded=frozenset(large if executor is not None else ()))
    what = batches[0].table if len(batches) == 1 else f"{len(batches)} tables"
    job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
    return map_tasks(task, batches, session=spark, job=job, weights=weights)


def _sharded(
    one: ChangeBatch, by_shards: Callable[[ChangeBatch], MergeResult]
) -> MergeResult | TailraceError:
    try:
        return by_shards(one)
    except Exception as error:  # noqa: BLE001 - the other tables continue
        return from_spark(error, where=f"apply {one.table}")
