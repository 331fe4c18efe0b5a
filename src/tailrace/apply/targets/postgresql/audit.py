"""A merge into a PostgreSQL table by one Spark task that also finds the outcome of each change, and writes
the key log of it: the keys go to the database first, and what it has of them comes back.

All of it is one transaction, which sees the table as it was at its beginning: when somebody else changes a
row meanwhile, the database says so, and it is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from deltalake import DeltaTable

from ....config.machine import cores
from ....engine.source import Source
from ....errors import ApplyError
from ....execution import thread_pool
from ....lake.retrying import retried
from ....model.types import arrow_type, schema_of
from ....sources.postgresql.connect import Session
from ...images import images
from ...plan import TableBatch
from ...tasks import TOO_LARGE, result
from ..audit import LOST, Audit, Audited, merge_audited, outcome_of, row_of
from ..auditor import BatchAuditor, added_rows, held, only_adds, source_of, wanted
from ..outcome import ApplyOutcome
from ..rendering import Rendering
from ..task_batch import TaskBatch
from .audited_merge import Merge, MergeOrder
from .place import Place, session
from .progress import Progress, Reached
from .repairs import Repairs
from .values import beyond

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

_ATTEMPTS = 5


@dataclass(frozen=True)
class DatabaseAudit:
    """The function of the one task that gets all changes; see `AuditTask` of Delta targets.

    Attributes:
        order: what is to be merged where.
        extra: columns that the changes bring besides those of the target.
        memory_bytes: what it may hold in memory; None: no limit.
    """

    order: MergeOrder
    extra: pa.Schema
    memory_bytes: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        relation, audit = self.order.relation, self.order.audit
        schema, key = schema_of(relation.columns), tuple(relation.key)
        columns = wanted(self.extra, schema)
        with Rendering(audit, cores()) as texts:
            rows = held(batches, columns, self.memory_bytes, texts)
            if rows is None or beyond(rows):  # values that are to be set aside take the long way, too
                yield result(file=TOO_LARGE)
                return
            adds = only_adds(rows, key, schema, audit)
            source = adds or source_of(rows, key, schema, audit.rules)
            yield self._result(source, adds and added_rows(adds), texts)

    def _result(self, source: Source, added: pa.Table | None, texts: Rendering) -> pa.RecordBatch:
        order = self.order
        with thread_pool("audit") as pool:
            auditor = BatchAuditor(order.audit, order.upto, source, texts.parts)
            with session(order.place, order.where) as on:
                done = self._done(on, source, auditor, added, pool)
        return row_of(done, auditor.audited(done))

    def _done(
        self, on: Session, source: Source, auditor: BatchAuditor, added: pa.Table | None, pool: Executor
    ) -> ApplyOutcome:
        def once() -> ApplyOutcome:
            with on.transaction():
                return Merge(on, self.order, source, auditor, added, pool).run()

        try:
            return retried(once, psycopg.errors.SerializationFailure, tries=_ATTEMPTS)
        except psycopg.errors.SerializationFailure as error:
            raise ApplyError(
                "others change the batch's rows in the target faster than it is applied",
                where=self.order.where,
                hint="let nobody else write to it while changes are applied",
            ) from error


def merged(
    place: Place,
    task: str,
    progress: Progress,
    on: Session,
    reached: Reached,
    batch: TableBatch,
    audit: Audit,
    extras: Mapping[str, SparkColumn],
    memory: int | None,
) -> Audited | str:
    """Runs a batch as one such task, see `audit.merge_audited`; `on` has the table for itself."""
    table, columns = batch.table, batch.relation
    made = images(batch.changes, columns, after=reached.upto, extras=extras)
    kinds = {n: arrow_type(made.schema[n].dataType.simpleString()) for n in extras}
    repairs, at, extra = isinstance(progress, Repairs), progress.at(table), pa.schema(list(kinds.items()))
    order = MergeOrder(place, task, repairs, at, reached, batch.upto, columns, audit)

    def nothing() -> ApplyOutcome:
        return ApplyOutcome(version=progress.advance(on, table, batch.upto))

    return merge_audited(made, DatabaseAudit(order, extra, memory), batch.upto, nothing)


def merged_here(
    place: Place,
    task: str,
    progress: Progress,
    reached: Reached,
    one: TaskBatch,
    changes: DeltaTable,
    audit: Audit,
    memory: int | None,
) -> Audited | None:
    """Does what such a task does, in this process; None: the batch is too large for that, or an attempt
    before this one committed it, and what that found is not known."""
    table, columns = one.table, one.layout or one.relation
    repairs, at = isinstance(progress, Repairs), progress.at(table)
    order = MergeOrder(place, task, repairs, at, reached, one.upto, columns, audit)
    (found,) = DatabaseAudit(order, one.extra, memory)(
        one.read(wanted(one.extra, schema_of(columns.columns)), changes)
    )
    (row,) = found.to_pylist()
    done = outcome_of(row)
    if done == LOST and one.audit is None:
        return Audited(ApplyOutcome(version=row["version"]), one.upto)
    return done if isinstance(done, Audited) else None
