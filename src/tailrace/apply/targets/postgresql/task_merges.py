"""Batches on their way to their merge: by tasks that read the changes from files, tables side by side, or by
one Spark job that gets them from a DataFrame."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ....engine.columns import OPER, SEQ, WHY
from ....errors import ApplyError, ConstraintError, TailraceError, TargetLostError
from ....execution import Job, map_tasks
from ....lake import delta as lake
from ....model.types import arrow_type, schema_of
from ....sources.postgresql.connect import Session
from ... import data_errors
from ...data_errors import Demands
from ...gone import gone
from ...images import col, explaining, images, masked, ordinals
from ...mapping.shared_rows import TargetPlace
from ...plan import TableBatch
from ..audit import LOST, Audit, Audited, merge_audited, plain_audit
from ..auditor import wanted
from ..outcome import ApplyOutcome
from ..task_batch import TaskBatch, audit_of
from . import layout
from .merge import BatchMerge
from .place import Place, locked
from .progress import Progress, Reached

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


class Merges:
    """Merges of a target; see `Audits` and `Shares`.

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
        """Merges batches, tables side by side; None: one needs its own job."""
        weights = [max(1, sum(one.counts.get(kind, 0) for kind in "IUD")) for one in batches]
        what = batches[0].table if len(batches) == 1 else f"{len(batches)} tables"
        job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
        session = None if any(one.rows is not None for one in batches) else self._spark
        task = MergeTask(self._place, self._task, self._progress.repairs, self._memory)
        todo = [(one, self._progress.at(one.table)) for one in batches]
        return map_tasks(task, todo, session=session, job=job, weights=weights, at_once=self._at_once)

    def audited(self, batch: TableBatch, audit: Audit, extras: Mapping[str, Column]) -> Audited | str:
        """Merges a batch by a Spark job of one task; see `Audits`."""
        with writing(self._place, self._task, batch.table) as mine:
            reached = self._ready(mine, batch)
            if reached.upto >= batch.upto:
                return LOST
            return self._merged(mine, reached, batch, audit, extras)

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
            done = self._merged(mine, reached, batch, audit, masked(batch.changes))
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
        if reached.upto < batch.upto and not layout.same(reached.layout, batch.relation):
            raise ApplyError(
                "the batch has another layout than the target",
                where=f"{self._place.label}, {batch.table}",
                hint="call `alter` first; take a new baseline if tailrace_progress was changed by hand",
            )
        return reached

    def _merged(
        self, mine: Session, reached: Reached, batch: TableBatch, audit: Audit, extras: Mapping[str, Column]
    ) -> Audited | str:
        """Runs the merge; `mine` has the table for itself. Values that are lost in a column of another type
        are data errors."""
        began, changes = time.monotonic(), batch.changes
        if not audit.plain and data_errors.retyped(changes, batch.relation):
            changes = data_errors.marked(changes, batch.relation, Demands())
            extras = {**extras, WHY: col(WHY)}
        made = images(changes, batch.relation, after=reached.upto, extras=extras)
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
    error of a server that is gone or refuses rows. None also for other errors: the batch's own job raises
    them again, and can explain them."""

    place: Place
    task: str
    repairs: bool
    memory_bytes: int | None

    def __call__(self, todo: tuple[TaskBatch, TargetPlace]) -> Audited | TailraceError | None:
        one, at = todo
        try:
            return self._merged(one, at)
        except (TargetLostError, ConstraintError) as error:
            return error
        except Exception:  # noqa: BLE001 - see above
            return None

    def _merged(self, one: TaskBatch, at: TargetPlace) -> Audited | None:
        began, relation = time.monotonic(), one.layout or one.relation
        progress = Progress(self.place, self.task, lambda _: at, repairs=self.repairs)
        with lake.opened(one.changes) as changes:
            if (audit := audit_of(one, changes)) is None:
                return None
            with writing(self.place, self.task, one.table) as mine:
                reached = progress.read(mine, one.table)
                if reached is None or not layout.same(reached.layout, relation):
                    return None
                if one.after < reached.upto < one.upto:
                    return None  # the key log lacks changes that the target has
                merge = BatchMerge(
                    self.place, self.task, self.repairs, at, reached, one.upto, relation, audit, one.extra,
                    self.memory_bytes,
                )  # fmt: skip
                merged = merge.run(one.read(wanted(one.extra, schema_of(relation.columns)), changes), mine)
        if merged is None:
            return None
        outcome, found = merged
        if found is None:  # an earlier attempt committed the batch
            return Audited(outcome, one.upto) if one.audit is None else None
        return replace(found, outcome=replace(found.outcome, seconds=time.monotonic() - began))


@contextmanager
def writing(place: Place, task: str, table: str) -> Iterator[Session]:
    """A connection that has the table for itself; errors are explained."""
    with explaining(table, f"{place.label}, {table}"), locked(place, task, table) as mine:
        yield mine
