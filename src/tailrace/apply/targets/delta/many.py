"""Batches that a task reads and merges by itself (`audit`), tables side by side: no row passes the JVM, and
no job or plan is spent on a single table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ....config.spread import cluster, spread
from ....errors import ConcurrentCommitError, TailraceError, from_spark
from ....lake import delta as lake
from ....model.types import schema_of
from ...plan import Limits, is_local
from ...tasks import RESULT, TOO_LARGE, result
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
MANY = 64
"""So many tables are worth Spark's tasks on one machine, too: in small merges Python itself has much to do,
which threads do one after the other."""
FAILED = "failed"


@dataclass(frozen=True)
class ManyTask:
    """The function of tasks whose rows are places in `todo`; gives one row of `RESULT` each, `table` of which
    is the place. `file` says `TOO_LARGE` for a table that needs a job of its own, `FAILED` when its changes
    were not applied, and `message` why. `alone`: there is no other machine."""

    todo: tuple[TaskBatch, ...]
    limits: Limits
    memory_bytes: int | None
    alone: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield self._one(place)

    def _one(self, place: int) -> pa.RecordBatch:
        one, began = self.todo[place], time.monotonic()
        try:
            done = self._merged(one)
        except ConcurrentCommitError:
            return result(table=str(place), file=TOO_LARGE)  # a job of its own looks anew
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables go on
            kind = type(error)
            text = f"{kind.__module__}.{kind.__name__}: {error}"
            return result(table=str(place), file=FAILED, message=text)
        if done is None:
            return result(table=str(place), file=TOO_LARGE)
        took = int((time.monotonic() - began) * 1e6)
        return result(**{**done.to_pylist()[0], "table": str(place), "took_us": took})

    def _merged(self, one: TaskBatch) -> pa.RecordBatch | None:
        """What was done; None when it is not for one task."""
        if not lake.exists(one.target):
            return None
        with lake.opened(one.changes) as changes, lake.opened(one.target) as table:
            if (task := self._task(one, changes, table)) is None:
                return None
            (done,) = task(one.read(task.wanted, changes))
            return done

    def _task(self, one: TaskBatch, changes: DeltaTable, table: DeltaTable) -> AuditTask | None:
        """The merge; None when the table, or its change table, is not for one task."""
        # What is only added to has nothing to do with its size.
        if not (one.adds or self._may(table)) or not is_plain(table):
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

    def _may(self, table: DeltaTable) -> bool:
        """Whether one task may look for the rows: in large tables only if no other machine could help, and
        it may write a file of the table."""
        if is_local(size := size_of(table), self.limits):
            return True
        smallest = min(actions(table)["size_bytes"].to_pylist(), default=0)
        return self.alone and not size.vectors and smallest <= self.limits.local_bytes


def merge_many(
    spark: SparkSession | None,
    todo: Sequence[TaskBatch],
    make: ManyTask,
    several: Callable[[TaskBatch], Audited | None],
) -> list[Audited | TailraceError | None]:
    """Merges all batches, as many side by side as there are cores: by threads of this process, on a cluster
    and where they are `MANY` by Spark's tasks in one job; then those that are too large for that, one by one,
    by `several`.

    Gives for each, in their order, what was done, or the error of a table whose changes were not applied, or
    None: it needs a job of its own (nothing was done, or what was found is not known).
    """
    there = spark if len(todo) >= MANY else cluster(spark)
    if any(one.rows is not None for one in todo):
        there = None  # where they are
    rows = spread(make, len(todo), RESULT, there)
    found: dict[int, Audited | TailraceError | None] = {}
    for row in rows:
        one = todo[place := int(row["table"])]
        if row["file"] == FAILED:
            found[place] = from_spark(RuntimeError(row["message"]), where=f"apply {one.table}")
            continue
        done = outcome_of(row)
        if done == LOST and one.audit is None:
            done = Audited(ApplyOutcome(version=row["version"]), one.upto)
        if isinstance(done, Audited):
            seconds, plan = row["took_us"] / 1e6, "append" if one.adds else "task_local"
            done = replace(done, outcome=replace(done.outcome, plan=plan, seconds=seconds))
        found[place] = done if isinstance(done, Audited) else None
    return [
        _by_several(one, several) if found[place] is None else found[place] for place, one in enumerate(todo)
    ]


def _by_several(
    one: TaskBatch, several: Callable[[TaskBatch], Audited | None]
) -> Audited | TailraceError | None:
    try:
        return several(one)
    except Exception as error:  # noqa: BLE001 - the other tables go on
        return from_spark(error, where=f"apply {one.table}")
