"""A merge into a Delta table inside one task that also finds what became of each change, and writes the key
log of it: one Spark job does what otherwise takes several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ... import lake
from .auditor import Audit, Audited, BatchAuditor, held, source_of, wanted
from .base import Outcome
from .delta_local import TOO_LARGE, info, result, run
from .delta_rewrite import merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

LOST = "lost"


@dataclass(frozen=True)
class AuditTask:
    """The function of the one task that gets all changes: `SEQ`, `OPER`, what `extra` names (see
    `keylog_rows`), and the data columns.

    They are held in memory: when they take more than a third of `memory_bytes`, nothing is written, and the
    result says so (`TOO_LARGE`). A task that runs again after its commit has nothing to tell.
    """

    path: str
    app_id: str
    upto: int
    key: tuple[str, ...]
    schema: pa.Schema
    extra: pa.Schema
    memory_bytes: int | None
    audit: Audit

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = held(batches, self.wanted, self.memory_bytes)
        if rows is None:
            yield result(file=TOO_LARGE)
            return
        source = source_of(rows, self.key, self.schema, self.audit.rules)
        auditor = BatchAuditor(self.audit, self.upto, source)
        done = merge(
            self.path, source, self.app_id, self.upto, self.memory_bytes, info(plan="task_local"), auditor
        )
        yield row_of(done, auditor.told(done))

    @property
    def wanted(self) -> pa.Schema:
        """The columns of the batches it gets."""
        return wanted(self.extra, self.schema)


def row_of(done: Outcome, told: Audited | None) -> pa.RecordBatch:
    """One row of results; `outcome_of` reads it."""
    return result(
        inserted=done.inserted, updated=done.updated, deleted=done.deleted, version=done.version,
        told=told.to_json() if told else None,
    )  # fmt: skip


def merge_audited(df: DataFrame, task: AuditTask) -> Audited | str:
    """Runs the merge as one Spark job of one task.

    Gives `TOO_LARGE` when its memory does not hold the changes, and `LOST` when an attempt before this one
    committed it and was lost: what it found is not known then.
    """
    found = run(df.coalesce(1), task)
    if not found:  # Spark runs no task for rows it knows to be none
        version = lake.commit(task.path, [], progress={task.app_id: task.upto})
        outcome = Outcome(version=lake.version(task.path) if version is None else version)
        return Audited(outcome, task.upto, dict.fromkeys("IUDT", 0), {}, None, None)
    return outcome_of(found[0])


def outcome_of(row: Row) -> Audited | str:
    """What one row of results says; see `merge_audited`."""
    if row["file"] == TOO_LARGE:
        return TOO_LARGE
    outcome = Outcome(row["inserted"], row["updated"], row["deleted"], row["version"], "task_local")
    return Audited.from_json(row["told"], outcome) if row["told"] else LOST
