"""Merges batches by tasks that read the changes from files, tables side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import ApplyError, TailraceError, raised_in_task
from ...execution import Job, map_tasks
from ...model.change import Relation
from ...model.types import schema_of
from ...sources.postgresql.connect import Session
from ..auditor import wanted
from ..base import gone
from ..change_batch import ChangeBatch, audit_of
from ..images import explaining
from ..merge_result import ApplyOutcome, MergeResult
from ..multi_source import TargetPlace
from . import layout
from .merge import BatchMerge
from .place import Place, locked
from .progress import Progress, Reached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Merges:
    """Merges of a target.

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

    def merge(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError | None]:
        """Merges batches, tables side by side; see `Target`."""
        weights = [one.size for one in batches]
        what = batches[0].table if len(batches) == 1 else f"{len(batches)} tables"
        job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
        session = None if any(one.rows is not None for one in batches) else self._spark
        task = MergeTask(self._place, self._task, self._progress.repairs, self._memory)
        todo = [(one, self._progress.at(one.table)) for one in batches]
        return map_tasks(task, todo, session=session, job=job, weights=weights, at_once=self._at_once)


@dataclass(frozen=True)
class MergeTask:
    """Merges the batch of a table, whose rows are where its `TargetPlace` says. Returns what was done, or the
    error of a table whose changes were not applied. None: memory does not hold the changes, and they are in
    no order."""

    place: Place
    task: str
    repairs: bool
    memory_bytes: int | None

    def __call__(self, todo: tuple[ChangeBatch, TargetPlace]) -> MergeResult | TailraceError | None:
        one, at = todo
        try:
            return self._merged(one.located(), at)
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables continue
            return raised_in_task(error, f"apply {one.table}")

    def _merged(self, one: ChangeBatch, at: TargetPlace) -> MergeResult | None:
        began, relation, audit = time.monotonic(), one.layout or one.relation, audit_of(one)
        progress = Progress(self.place, self.task, lambda _: at, repairs=self.repairs)
        with writing(self.place, self.task, one.table) as mine:
            reached = ready(mine, self.place, progress, relation, one.range.end)
            if reached.upto > one.range.lower:
                return MergeResult(ApplyOutcome(version=reached.version), reached.upto, noted=True)
            merge = BatchMerge(
                self.place, self.task, self.repairs, at, reached, one.range.end, relation, audit, one.extra,
                self.memory_bytes,
            )  # fmt: skip
            merged = merge.run(one.read(wanted(one.extra, schema_of(relation.columns))), mine)
        if merged is None:
            return None
        outcome, found = merged
        if found is None:  # another attempt committed the batch
            return MergeResult(outcome, one.range.end, noted=True)
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
