"""Batches on their way to their merge: by tasks that read the changes from files, tables side by side, or by
one Spark job that gets them from a DataFrame."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ....engine.columns import OPER, SEQ
from ....errors import ApplyError, TailraceError, from_spark
from ....execution import Job, map_tasks
from ....model.change import Relation
from ....model.types import arrow_type, schema_of
from ....sources.postgresql.connect import Session
from ...gone import gone
from ...images import explaining, images, masked, ordinals
from ...mapping.shared_rows import TargetPlace
from ...plan import TableBatch
from ..audit import Audit, Audited, merge_audited, plain_audit
from ..auditor import wanted
from ..outcome import ApplyOutcome
from ..task_batch import TaskBatch, audit_of
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
        """Merges a batch without rules: every change is made to fit."""
        with writing(self._place, self._task, batch.table) as mine:
            reached = self._ready(mine, batch)
            if reached.upto >= batch.upto:
                return ApplyOutcome(version=reached.version)
            if not batch.rows:
                return self._nothing(mine, batch)
            names = [c.name for c in batch.relation.columns]
            places = ordinals(batch.changes.df.columns, names)
            audit = plain_audit(batch.table, batch.relation, places, reached.upto)
            done = self._merged(mine, reached, batch, audit)
            if isinstance(done, Audited):
                return done.outcome
            return ApplyOutcome(version=self._ready(mine, batch).version)  # an earlier attempt committed it

    def _ready(self, mine: Session, batch: TableBatch) -> Reached:
        """The progress of a batch's table, which is created if it does not exist.

        Raises:
            BaselineNeededError: it has no target, and had a baseline.
            ApplyError: the target has another layout.
        """
        reached = self._progress.read(mine, batch.table)
        if reached is None:
            if batch.based:
                raise gone(batch.table)
            layout.create(mine, self._place, self._progress, batch.relation)
            reached = self._progress.read(mine, batch.table)
            assert reached is not None  # noqa: S101 - it was created
        if reached.upto < batch.upto:
            refuse_other(self._place, reached, batch.relation)
        return reached

    def _merged(self, mine: Session, reached: Reached, batch: TableBatch, audit: Audit) -> Audited | str:
        """Runs the merge; `mine` has the table for itself."""
        began, extras = time.monotonic(), masked(batch.changes)
        made = images(batch.changes, batch.relation, after=reached.upto, extras=extras)
        kinds = {n: arrow_type(made.schema[n].dataType.simpleString()) for n in extras}
        merge = BatchMerge(
            self._place, self._task, self._progress.repairs, self._progress.at(batch.table), reached,
            batch.upto, batch.relation, audit, pa.schema(list(kinds.items())), self._memory,
        )  # fmt: skip
        rows = made.coalesce(1).sortWithinPartitions(SEQ, OPER)
        done = merge_audited(rows, merge, batch.upto, lambda: self._nothing(mine, batch))
        if isinstance(done, str):
            return done
        return replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))

    def _nothing(self, mine: Session, batch: TableBatch) -> ApplyOutcome:
        return ApplyOutcome(version=self._progress.advance(mine, batch.table, batch.upto))


@dataclass(frozen=True)
class MergeTask:
    """Merges the batch of a table, whose rows are where its `TargetPlace` says. Returns what was done, or the
    error of a table whose changes were not applied; None as in `Shares`."""

    place: Place
    task: str
    repairs: bool
    memory_bytes: int | None

    def __call__(self, todo: tuple[TaskBatch, TargetPlace]) -> Audited | TailraceError | None:
        one, at = todo
        began = time.monotonic()
        try:
            done = self._merged(one.located(), at)
        except TailraceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables continue
            kind = type(error)
            text = f"{kind.__module__}.{kind.__name__}: {error}"
            return from_spark(RuntimeError(text), where=f"apply {one.table}")
        if done is None:
            return None
        return replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))

    def _merged(self, one: TaskBatch, at: TargetPlace) -> Audited | None:
        progress = Progress(self.place, self.task, lambda _: at, repairs=self.repairs)
        with writing(self.place, self.task, one.table) as mine:
            reached = progress.read(mine, one.table)
            if reached is None:
                raise gone(one.table)
            if reached.upto > one.after and (reached.upto >= one.upto or one.audit is not None):
                return had(reached, one)
            return self._behind(mine, reached, replace(one, after=max(one.after, reached.upto)), at)

    def _behind(self, mine: Session, reached: Reached, one: TaskBatch, at: TargetPlace) -> Audited | None:
        """Merges changes that the table does not have."""
        relation = one.layout or one.relation
        refuse_other(self.place, reached, relation)
        audit, columns = audit_of(one), wanted(one.extra, schema_of(relation.columns))
        merge = BatchMerge(
            self.place, self.task, self.repairs, at, reached, one.upto, relation, audit, one.extra,
            self.memory_bytes,
        )  # fmt: skip
        if (merged := merge.run(one.read(columns), mine)) is None:
            return None
        outcome, found = merged
        return found or had(replace(reached, upto=one.upto, version=outcome.version), one)


def had(reached: Reached, one: TaskBatch) -> Audited:
    """What an earlier attempt did with the first changes of a batch, whose answer was lost."""
    return Audited(ApplyOutcome(version=reached.version), min(reached.upto, one.upto), noted=True)


def refuse_other(place: Place, reached: Reached, relation: Relation) -> None:
    """Raises ApplyError if a target has another layout than a batch."""
    if not layout.same(reached.layout, relation):
        raise ApplyError(
            "the batch has another layout than the target",
            where=f"{place.label}, {relation.table}",
            hint="call `alter` first; take a new baseline if tailrace_progress was changed by hand",
        )


@contextmanager
def writing(place: Place, task: str, table: str) -> Iterator[Session]:
    """A connection that has the table for itself; errors are explained."""
    with explaining(table, f"{place.label}, {table}"), locked(place, task, table) as mine:
        yield mine
