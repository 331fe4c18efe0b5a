"""Batches on their way to their merge: by tasks that read the changes from files, tables side by side, or by
one Spark job that gets them from a DataFrame."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ...engine.columns import MASK, OPER, SEQ
from ...errors import ApplyError, TailraceError, raised_in_task
from ...execution import Job, map_partitions, map_tasks
from ...model.change import Relation
from ...model.types import schema_of
from ...sources.postgresql.connect import Session
from ..audit import Audited, plain_audit
from ..auditor import wanted
from ..base import gone
from ..change_batch import TaskBatch, audit_of
from ..images import explaining, images, masked, ordinals
from ..merge_result import ApplyOutcome
from ..multi_source import TargetPlace
from ..plans import TableBatch
from . import layout
from .merge import BatchMerge
from .place import Place, locked
from .progress import Progress, Reached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Merges:
    """Merges of a target; see `Shares`.

    Args:
        spark: the session whose tasks may merge.
        place, task, progress: of the target.
        memory_bytes: memory that one merge may use; None: no limit.
        at_once: the number of tables that are merged at the same time; None: as many as there are slots.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        place: Place,
        task: str,
        progress: Progress,
        memory_bytes: int | None,
        at_once: int | None = None,
    ) -> None:
        self._spark, self._at_once = spark, at_once
        self._place, self._task, self._progress, self._memory = place, task, progress, memory_bytes

    def path(self, table: str) -> str:
        """The target's name in the database, as quoted SQL."""
        return self._progress.target(table)

    def loads(self, table: str) -> bool:
        """See `Shares`."""
        return True

    def merge_many(self, batches: Sequence[TaskBatch]) -> list[Audited | TailraceError | None]:
        """Merges batches, tables side by side; see `Shares`."""
        weights = [max(1, sum(one.counts.get(kind, 0) for kind in "IUD")) for one in batches]
        what = batches[0].table if len(batches) == 1 else f"{len(batches)} tables"
        job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
        session = None if any(one.rows is not None for one in batches) else self._spark
        task = MergeTask(self._place, self._task, self._progress.repairs, self._memory)
        todo = [(one, self._progress.at(one.table)) for one in batches]
        return map_tasks(task, todo, session=session, job=job, weights=weights, at_once=self._at_once)

    def apply(self, batch: TableBatch) -> ApplyOutcome:
        """Merges a batch without rules by a Spark job of one task: every change is made to fit."""
        with writing(self._place, self._task, batch.table) as mine:
            reached = self._ready(mine, batch)
            if reached.upto >= batch.upto:
                return ApplyOutcome(version=reached.version)
            if not batch.rows:
                return self._nothing(mine, batch)
            return self._merged(mine, reached, batch)

    def _ready(self, mine: Session, batch: TableBatch) -> Reached:
        """The progress of a batch's table, which is created if it does not exist and had no baseline."""
        if self._progress.read(mine, batch.table) is None and not batch.based:
            layout.create(mine, self._place, self._progress, batch.relation)
        return ready(mine, self._place, self._progress, batch.relation, batch.upto)

    def _merged(self, mine: Session, reached: Reached, batch: TableBatch) -> ApplyOutcome:
        """Runs the merge; `mine` has the table for itself."""
        began = time.monotonic()
        names = [c.name for c in batch.relation.columns]
        audit = plain_audit(
            batch.table, batch.relation, ordinals(batch.changes.df.columns, names), reached.upto
        )
        made = images(batch.changes, batch.relation, after=reached.upto, extras=masked(batch.changes))
        extra = pa.schema([pa.field(MASK, pa.binary())] if MASK in made.columns else [])
        merge = BatchMerge(
            self._place, self._task, self._progress.repairs, self._progress.at(batch.table), reached,
            batch.upto, batch.relation, audit, extra, self._memory,
        )  # fmt: skip
        found = map_partitions(made.coalesce(1).sortWithinPartitions(SEQ, OPER), merge)
        if not found:
            return self._nothing(mine, batch)
        (done,) = found
        assert done is not None  # noqa: S101 - the changes are in their order
        return replace(done[0], seconds=time.monotonic() - began)

    def _nothing(self, mine: Session, batch: TableBatch) -> ApplyOutcome:
        return ApplyOutcome(version=self._progress.advance(mine, batch.table, batch.upto))


@dataclass(frozen=True)
class MergeTask:
    """Merges the batch of a table, whose rows are where its `TargetPlace` says. Returns what was done, or the
    error of a table whose changes were not applied. None: memory does not hold the changes, and they are in
    no order."""

    place: Place
    task: str
    repairs: bool
    memory_bytes: int | None

    def __call__(self, todo: tuple[TaskBatch, TargetPlace]) -> Audited | TailraceError | None:
        one, at = todo
        try:
            return self._merged(one.located(), at)
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables continue
            return raised_in_task(error, f"apply {one.table}")

    def _merged(self, one: TaskBatch, at: TargetPlace) -> Audited | None:
        began, relation, audit = time.monotonic(), one.layout or one.relation, audit_of(one)
        progress = Progress(self.place, self.task, lambda _: at, repairs=self.repairs)
        with writing(self.place, self.task, one.table) as mine:
            reached = ready(mine, self.place, progress, relation, one.upto)
            if reached.upto > one.after:
                return Audited(ApplyOutcome(version=reached.version), reached.upto, noted=True)
            merge = BatchMerge(
                self.place, self.task, self.repairs, at, reached, one.upto, relation, audit, one.extra,
                self.memory_bytes,
            )  # fmt: skip
            merged = merge.run(one.read(wanted(one.extra, schema_of(relation.columns))), mine)
        if merged is None:
            return None
        outcome, found = merged
        if found is None:  # another attempt committed the batch
            return Audited(outcome, one.upto, noted=True)
        return replace(found, outcome=replace(found.outcome, seconds=time.monotonic() - began))


def ready(mine: Session, place: Place, progress: Progress, relation: Relation, upto: int) -> Reached:
    """The progress of a batch's table.

    Raises:
        BaselineNeededError: the table does not exist.
        ApplyError: it has another layout.
    """
    reached = progress.read(mine, relation.table)
    if reached is None:
        raise gone(relation.table)
    if reached.upto < upto and not layout.same(reached.layout, relation):
        raise ApplyError(
            "the batch has another layout than the target",
            where=f"{place.label}, {relation.table}",
            hint="call `alter` first; take a new baseline if tailrace_progress was changed by hand",
        )
    return reached


@contextmanager
def writing(place: Place, task: str, table: str) -> Iterator[Session]:
    """A connection that has the table for itself; errors are explained."""
    with explaining(table, f"{place.label}, {table}"), locked(place, task, table) as mine:
        yield mine
