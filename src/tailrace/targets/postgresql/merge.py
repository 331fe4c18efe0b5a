"""Merges batches by tasks that read the changes from files, tables side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import ApplyError, TailraceError, raised_in_task
from ...execution import Job, map_tasks
from ...model.change import Relation
from ...model.types import schema_of
from ...sources.postgresql.connect import Session
from ..auditor import batch_columns
from ..base import missing_baseline
from ..change_batch import ChangeBatch, audit_of
from ..images import explaining
from ..merge_result import ApplyOutcome, MergeResult
from ..multi_source import TargetLocation
from . import layout
from .batch_merge import BatchMerge
from .connection import Database, locked_session
from .progress import ProgressRow, ProgressTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class MergeTask:
    """Merges the batch of a table, whose rows are where its `TargetLocation` says. Returns what was done, or
    the error of a table whose changes were not applied. None: memory does not hold the changes, and they are
    in no order."""

    database: Database
    task: str
    repairs: bool
    memory_bytes: int | None

    def __call__(self, todo: tuple[ChangeBatch, TargetLocation]) -> MergeResult | TailraceError | None:
        one, at = todo
        try:
            return self._merged(one.located(), at)
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables continue
            return raised_in_task(error, f"apply {one.table}")

    def _merged(self, one: ChangeBatch, at: TargetLocation) -> MergeResult | None:
        began, relation, audit = time.monotonic(), one.layout or one.relation, audit_of(one)
        progress = ProgressTable(self.database, self.task, lambda _: at, repairs=self.repairs)
        with writing(self.database, self.task, one.table) as session:
            row = ready(session, self.database, progress, relation, one.range.end)
            if row.number > one.range.lower:
                return MergeResult(ApplyOutcome(version=row.version), row.number, noted=True)
            merge = BatchMerge(
                self.database, self.task, self.repairs, at, row, one.range.end, relation, audit, one.extra,
                self.memory_bytes,
            )  # fmt: skip
            merged = merge.run(one.read(batch_columns(one.extra, schema_of(relation.columns))), session)
        if merged is None:
            return None
        outcome, found = merged
        if found is None:  # another attempt committed the batch
            return MergeResult(outcome, one.range.end, noted=True)
        return replace(found, outcome=replace(found.outcome, seconds=time.monotonic() - began))


def merge(
    spark: SparkSession | None,
    batches: Sequence[ChangeBatch],
    task: MergeTask,
    location: Callable[[str], TargetLocation],
    at_once: int | None,
) -> list[MergeResult | TailraceError | None]:
    """Merges batches of different tables in one job; see `Target.merge`.

    Args:
        spark: the session whose tasks may merge; None: threads of this process do.
        batches: the batches.
        task: merges the batch of one table.
        location: returns the location of a table's rows.
        at_once: the maximum number of tables that are merged at the same time; None: the number of slots.
    """
    weights = [one.size for one in batches]
    what = batches[0].table if len(batches) == 1 else f"{len(batches)} tables"
    job = Job("apply", f"apply {what}: {sum(weights):,} changes", sum(weights))
    if any(one.rows is not None for one in batches):
        spark = None  # the rows are in the driver
    inputs = [(one, location(one.table)) for one in batches]
    return map_tasks(task, inputs, session=spark, job=job, weights=weights, at_once=at_once)


def ready(
    session: Session, database: Database, progress: ProgressTable, relation: Relation, upto: int
) -> ProgressRow:
    """The progress of a batch's table.

    Raises:
        BaselineNeededError: the table does not exist.
        ApplyError: it has another layout.
    """
    row = progress.read(session, relation.table)
    if row is None:
        raise missing_baseline(relation.table)
    if row.number < upto and not layout.same(row.layout, relation):
        raise ApplyError(
            "the batch has another layout than the target",
            where=f"{database.label}, {relation.table}",
            hint="call `alter` first; take a new baseline if tailrace_progress was changed by hand",
        )
    return row


@contextmanager
def writing(database: Database, task: str, table: str) -> Iterator[Session]:
    """A connection that has the table for itself; errors are explained."""
    with explaining(table, f"{database.label}, {table}"), locked_session(database, task, table) as session:
        yield session
