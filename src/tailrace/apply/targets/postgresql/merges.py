"""Batches of a PostgreSQL target that are merged with an audit, each by one task, tables side by side.

A task reads the changes from their files, and has connections to the target of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ....errors import TailraceError, TargetLostError
from ....execution import Job, map_tasks
from ....lake import delta as lake
from ....sources.postgresql.connect import Session
from ...images import explaining
from ...mapping.shared_rows import TargetPlace
from ...plan import TableBatch
from ...tasks import TOO_LARGE
from ..audit import Audit, Audited
from ..task_batch import TaskBatch, audit_of
from . import layout
from .audit import merged, merged_here
from .notes import Notes
from .place import Place, locked
from .progress import Progress
from .refused import refuses
from .repairs import Repairs

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


class Merges:
    """What a target can do with batches whose outcomes are wanted; see `Audits` and `Shares`.

    Args:
        spark: whose tasks may merge.
        place, task, progress, notes: of the target.
        memory_bytes: what one merge may hold in memory; batches that need more take more jobs. None: no
            limit.
        at_once: how many tables are merged at the same time; None: as many as there are slots.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        place: Place,
        task: str,
        progress: Progress,
        notes: Notes,
        memory_bytes: int | None,
        at_once: int | None = None,
    ) -> None:
        self._spark, self._at_once = spark, at_once
        self._place, self._task, self._progress = place, task, progress
        self._notes, self._memory = notes, memory_bytes

    def path(self, table: str) -> str:
        """The target's name in the database, as quoted SQL."""
        return self._progress.target(table)

    def audited(self, batch: TableBatch, audit: Audit, extras: Mapping[str, Column]) -> Audited | str | None:
        """See `Audits`."""
        began, table = time.monotonic(), batch.table
        with writing(self._place, self._task, table) as mine:
            reached = self._progress.to_go_on(mine, table)
            if reached is None or not layout.same(reached.layout, batch.relation):
                return None
            if refuses(mine, self._place, self._progress.target(table), reached.layout):
                return None
            self._notes.prepare(mine)
            done = merged(
                self._place, self._task, self._progress, mine, reached, batch, audit, extras, self._memory
            )
        if isinstance(done, Audited):
            return replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))
        return None if done == TOO_LARGE else done

    def loads(self, table: str) -> bool:
        """See `Shares`."""
        return True

    def merge_many(self, batches: Sequence[TaskBatch]) -> list[Audited | TailraceError | None]:
        """Applies batches, tables side by side; None: one needs a job of its own."""
        weights = [max(1, sum(one.counts.get(kind, 0) for kind in "IUD")) for one in batches]
        what = batches[0].table if len(batches) == 1 else f"{len(batches)} tables"
        job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
        session = None if any(one.rows is not None for one in batches) else self._spark
        task = MergeTask(self._place, self._task, isinstance(self._progress, Repairs), self._memory)
        todo = [(one, self._progress.at(one.table)) for one in batches]
        return map_tasks(task, todo, session=session, job=job, weights=weights, at_once=self._at_once)


@dataclass(frozen=True)
class MergeTask:
    """Merges the batch of a table, whose rows are where its `TargetPlace` says. Returns what was done, or the
    error of a server that is gone; None also for other errors: the batch's own job raises them again, and can
    explain them."""

    place: Place
    task: str
    repairs: bool
    memory_bytes: int | None

    def __call__(self, todo: tuple[TaskBatch, TargetPlace]) -> Audited | TailraceError | None:
        one, at = todo
        kind = Repairs if self.repairs else Progress
        try:
            return self._merged(one, kind(self.place, self.task, partial(_same, at)))
        except TargetLostError as error:
            return error
        except Exception:  # noqa: BLE001 - see above
            return None

    def _merged(self, one: TaskBatch, progress: Progress) -> Audited | None:
        with lake.opened(one.changes) as changes:
            began = time.monotonic()
            if (audit := audit_of(one, changes)) is None:
                return None
            with writing(self.place, self.task, one.table) as mine:
                reached = progress.to_go_on(mine, one.table)
                if reached is None or not layout.same(reached.layout, one.layout or one.relation):
                    return None
                if one.after < reached.upto < one.upto:
                    return None  # the key log is to be made good first
                if refuses(mine, self.place, progress.target(one.table), reached.layout):
                    return None
                if audit.keylog is not None:
                    Notes(self.place, self.task).prepare(mine)
                done = merged_here(
                    self.place, self.task, progress, reached, one, changes, audit, self.memory_bytes
                )
        return done and replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))


def _same(at: TargetPlace, _: str) -> TargetPlace:
    return at


@contextmanager
def writing(place: Place, task: str, table: str) -> Iterator[Session]:
    """A connection that has the table for itself; what fails comes out as an error of ours."""
    with explaining(table, f"{place.label}, {table}"), locked(place, task, table) as mine:
        yield mine
