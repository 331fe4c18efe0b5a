"""The merges of several tables in one job: a task for each table, and shards of those that are too large."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ...errors import ConcurrentCommitError, TailraceError, from_spark, raised_in_task
from ...execution import Job, executor_of, map_tasks, slots
from ...lake import delta as lake
from ...model.positions import order_key
from ..audit import RESULT_LOST
from ..change_batch import ChangeBatch
from ..merge_result import ApplyOutcome, MergeResult
from ..plans import Limits, is_local
from .table_info import actions, is_plain, open_at, size_of
from .task_local_merge import TaskLocalMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000_000
"""A batch of more changes is merged by shards; so is one that the memory of a task does not hold, but that
shows only when it is read."""
SHARD_BYTES = 128 << 20
"""Tables of fewer bytes are not merged by shards to save time."""
SHARD_COST = 2
"""Shards of a table take about this many times the work of one task."""


@dataclass(frozen=True)
class MergeTask:
    """Merges the batch of one table. Returns what was done; the error of a table whose changes were not
    applied; None if the batch is to be merged by shards (nothing was done, or what was found is not known).

    One task may merge tables of any size, if it writes at most `limits.local_bytes`. `sharded`: tables that
    are left to shards, if they have `SHARD_BYTES`.
    """

    limits: Limits
    memory_bytes: int | None
    sharded: frozenset[str] = frozenset()

    def __call__(self, one: ChangeBatch) -> MergeResult | TailraceError | None:
        began = time.monotonic()
        try:
            done = self._merged(one)
        except ConcurrentCommitError:
            return None  # it is read again
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables continue
            return raised_in_task(error, f"apply {one.table}")
        if done == RESULT_LOST and one.audit is None:
            done = MergeResult(ApplyOutcome(version=lake.version(one.target)), one.range.end)
        if not isinstance(done, MergeResult):
            return None
        return replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))

    def _merged(self, one: ChangeBatch) -> MergeResult | str | None:
        """Returns the result of `MergeTask`; None if one task cannot merge the batch."""
        if not lake.exists(one.target):
            return None
        if one.log_only:
            return self._by(one.located(), open_at(one.target, one.app_id, one.range.lower))
        with lake.opened(one.target) as table:
            return self._by(one.located(), table)

    def _by(self, one: ChangeBatch, table: DeltaTable) -> MergeResult | str | None:
        # What is only added has nothing to do with the table's size.
        if not (one.appends or self._may(one, table)) or not is_plain(table):
            return None
        reached = order_key(lake.reached(table, one.app_id))
        if reached >= one.range.end and not one.log_only:
            return RESULT_LOST
        if one.audit is not None and one.range.lower < reached < one.range.end:
            return None  # the key log has to be completed first
        if {c.name for c in one.target_columns} - {f.name for f in table.schema().fields}:
            return None
        return TaskLocalMerge(one, table, reached, self.memory_bytes, self.limits.local_bytes).run()

    def _may(self, one: ChangeBatch, table: DeltaTable) -> bool:
        """Whether one task may look for the rows."""
        size = size_of(table)
        if one.table in self.sharded and size.bytes > SHARD_BYTES and one.rows is None:
            return False
        if is_local(size, self.limits):
            return True
        smallest = min(actions(table)["size_bytes"].to_pylist(), default=0)
        return not size.vectors and smallest <= self.limits.local_bytes


def merge(
    spark: SparkSession | None,
    todo: Sequence[ChangeBatch],
    make: MergeTask,
    by_shards: Callable[[ChangeBatch], MergeResult],
) -> list[MergeResult | TailraceError]:
    """Merges all batches in one job, as many side by side as there are slots; then those that are too large
    for one task, one by one, by shards. Gives for each, in their order, what was done, or the error of a
    table whose changes were not applied."""
    weights = [one.size for one in todo]
    single = [n for n, one in enumerate(todo) if weights[n] <= ROWS or one.rows is not None]
    found: dict[int, MergeResult | TailraceError | None] = {}
    if single:
        some = [todo[n] for n in single]
        found |= zip(single, _in_one_job(spark, some, [weights[n] for n in single], make), strict=True)
    return [found.get(n) or _sharded(one, by_shards) for n, one in enumerate(todo)]


def _in_one_job(
    spark: SparkSession | None, todo: Sequence[ChangeBatch], weights: Sequence[int], make: MergeTask
) -> list[MergeResult | TailraceError | None]:
    if any(one.rows is not None for one in todo):
        spark = None  # the rows are in the driver
    # A table that one task would keep busy for longer than shards of it, on all slots, would take.
    there = executor_of(spark, sum(weights))
    most = SHARD_COST * sum(weights) / slots(there)
    large = (one.table for one, weight in zip(todo, weights, strict=True) if weight > most)
    make = replace(make, sharded=frozenset(large if there is not None else ()))
    what = todo[0].table if len(todo) == 1 else f"{len(todo)} tables"
    job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
    return map_tasks(make, todo, session=spark, job=job, weights=weights)


def _sharded(
    one: ChangeBatch, by_shards: Callable[[ChangeBatch], MergeResult]
) -> MergeResult | TailraceError:
    try:
        return by_shards(one)
    except Exception as error:  # noqa: BLE001 - the other tables continue
        return from_spark(error, where=f"apply {one.table}")
