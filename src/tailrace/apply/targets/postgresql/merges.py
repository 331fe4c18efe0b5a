"""Batches of a PostgreSQL target that are merged with an audit: by one task of Spark's, or in this process,
those of several tables side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ....errors import TailraceError, TargetLostError
from ....execution import thread_pool
from ....lake import delta as lake
from ....sources.postgresql.connect import Session
from ...images import explaining
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

if TYPE_CHECKING:
    from pyspark.sql import Column


class Merges:
    """What a target can do with batches whose outcomes are wanted; see `Audits` and `Shares`.

    Args:
        place, task, progress, notes: of the target.
        memory_bytes: what one merge may hold in memory; batches that need more take more jobs. None: no
            limit.
    """

    def __init__(
        self, place: Place, task: str, progress: Progress, notes: Notes, memory_bytes: int | None
    ) -> None:
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
        """Applies batches in this process, side by side; None: one needs Spark."""
        with thread_pool("apply", worth=len(batches) > 1) as pool:
            return list(pool.map(self._tried, batches))

    def _tried(self, one: TaskBatch) -> Audited | TailraceError | None:
        """What was done; None also for an error: the batch's own job meets it again, and can explain it."""
        try:
            return self._merged(one)
        except TargetLostError as error:
            return error
        except Exception:  # noqa: BLE001 - see above
            return None

    def _merged(self, one: TaskBatch) -> Audited | None:
        with lake.opened(one.changes) as changes:
            began = time.monotonic()
            if (audit := audit_of(one, changes)) is None:
                return None
            with writing(self._place, self._task, one.table) as mine:
                reached = self._progress.to_go_on(mine, one.table)
                if reached is None or not layout.same(reached.layout, one.layout or one.relation):
                    return None
                if one.after < reached.upto < one.upto:
                    return None  # the key log is to be made good first
                if refuses(mine, self._place, self._progress.target(one.table), reached.layout):
                    return None
                if audit.keylog is not None:
                    self._notes.prepare(mine)
                done = merged_here(
                    self._place, self._task, self._progress, reached, one, changes, audit, self._memory
                )
        return done and replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))


@contextmanager
def writing(place: Place, task: str, table: str) -> Iterator[Session]:
    """A connection that has the table for itself; what fails comes out as an error of ours."""
    with explaining(table, f"{place.label}, {table}"), locked(place, task, table) as mine:
        yield mine
