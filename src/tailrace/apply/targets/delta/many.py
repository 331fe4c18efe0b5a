"""Batches that a task reads and merges by itself (`audit`), tables side by side: no row passes the JVM, and
one job does all tables of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ....errors import ConcurrentCommitError, TailraceError, from_spark
from ....execution import Job, executor_of, map_tasks, slots
from ....lake import delta as lake
from ....model.types import schema_of
from ...plan import Limits, is_local
from ..audit import LOST, Audited, outcome_of
from ..outcome import ApplyOutcome
from ..task_batch import TaskBatch, audit_of
from .audit import AuditTask
from .shared import fits
from .size import actions, is_plain, size_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000_000
"""A batch of more changes is a job of its own, which many tasks may do; so is one that the memory of a task
does not hold, but that shows only when it is read."""
SHARD_BYTES = 128 << 20
"""Tables of fewer bytes are not merged by shards of their files."""
SHARD_COST = 2
"""Shards of a table take so many times the work of one task: each reads the keys of all changes."""


@dataclass(frozen=True)
class ManyTask:
    """Merges the batch of one table. Returns what was done; the error of a table whose changes were not
    applied; None if the table needs a job of its own (nothing was done, or what was done is not known).

    One task may merge tables of any size, if it writes at most `limits.local_bytes`. `sharded`: names
    of tables that are left to several tasks, if these can merge them and they have `SHARD_BYTES`.
    """

    limits: Limits
    memory_bytes: int | None
    sharded: frozenset[str] = frozenset()

    def __call__(self, one: TaskBatch) -> Audited | TailraceError | None:
        began = time.monotonic()
        try:
            done = self._merged(one)
        except ConcurrentCommitError:
            return None  # a job of its own reads the table again
        except TailraceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables go on
            kind = type(error)
            text = f"{kind.__module__}.{kind.__name__}: {error}"
            return from_spark(RuntimeError(text), where=f"apply {one.table}")
        if done == LOST and one.audit is None:
            done = Audited(ApplyOutcome(version=lake.version(one.target)), one.upto)
        if not isinstance(done, Audited):
            return None
        seconds, plan = time.monotonic() - began, "append" if one.adds else "task_local"
        return replace(done, outcome=replace(done.outcome, plan=plan, seconds=seconds))

    def _merged(self, one: TaskBatch) -> Audited | str | None:
        """What was done, see `outcome_of`; None if it is not for one task."""
        if not lake.exists(one.target):
            return None
        with lake.opened(one.changes) as changes, lake.opened(one.target) as table:
            if (task := self._task(one, changes, table)) is None:
                return None
            (done,) = task(one.read(task.wanted, changes))
            return outcome_of(done.to_pylist()[0])

    def _task(self, one: TaskBatch, changes: DeltaTable, table: DeltaTable) -> AuditTask | None:
        """The merge; None when the table, or its change table, is not for one task."""
        # What is only added to has nothing to do with its size.
        if not (one.adds or self._may(one, table)) or not is_plain(table):
            return None
        reached = lake.reached(table, one.app)
        if one.audit is not None and one.after < reached < one.upto:
            return None  # the key log is to be made good first
        made = (one.layout or one.relation).columns
        if {c.name for c in made} - {f.name for f in table.schema().fields}:
            return None
        if one.shared and not fits(table, one.relation, one.counts):
            return None
        if (audit := audit_of(one, changes)) is None:
            return None
        key = tuple(one.relation.key)
        schema = schema_of(made)
        return AuditTask(
            one.target, one.app, one.upto, key, schema, one.extra, self.memory_bytes, audit, reached,
            table, self.limits.local_bytes,
        )  # fmt: skip

    def _may(self, one: TaskBatch, table: DeltaTable) -> bool:
        """Whether one task may look for the rows."""
        size = size_of(table)
        if one.table in self.sharded and size.bytes > SHARD_BYTES and is_whole(one):
            return False
        if is_local(size, self.limits):
            return True
        smallest = min(actions(table)["size_bytes"].to_pylist(), default=0)
        return not size.vectors and smallest <= self.limits.local_bytes


def is_whole(one: TaskBatch) -> bool:
    """Whether the last image of a key is all that remains of a batch's changes, as its counts say: several
    tasks can merge it in place."""
    whole = not (one.counts.get("T") or one.counts.get("absent"))
    return whole and one.audit is None and one.rows is None and bool(one.relation.key)


def merge_many(
    spark: SparkSession | None,
    todo: Sequence[TaskBatch],
    make: ManyTask,
    several: Callable[[TaskBatch], Audited | None],
) -> list[Audited | TailraceError | None]:
    """Merges all batches in one job, as many side by side as there are slots; then those that are too large
    for one task, one by one, by `several`.

    Gives for each, in their order, what was done, or the error of a table whose changes were not applied, or
    None: it needs a job of its own (nothing was done, or what was found is not known).
    """
    if any(one.rows is not None for one in todo):
        spark = None  # the rows are in the driver
    weights = [max(1, sum(one.counts.get(kind, 0) for kind in "IUD")) for one in todo]
    # A table that one task would keep busy for longer than shards of it, on all slots, would take.
    there = executor_of(spark, sum(weights))
    most = SHARD_COST * sum(weights) / slots(there)
    large = (one.table for one, weight in zip(todo, weights, strict=True) if weight > most)
    make = replace(make, sharded=frozenset(large if there is not None else ()))
    what = todo[0].table if len(todo) == 1 else f"{len(todo)} tables"
    job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
    found = map_tasks(make, todo, session=spark, job=job, weights=weights)
    return [
        _by_several(one, several) if made is None else made for one, made in zip(todo, found, strict=True)
    ]


def _by_several(
    one: TaskBatch, several: Callable[[TaskBatch], Audited | None]
) -> Audited | TailraceError | None:
    try:
        return several(one)
    except Exception as error:  # noqa: BLE001 - the other tables go on
        return from_spark(error, where=f"apply {one.table}")
