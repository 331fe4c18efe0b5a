"""The merge of a batch into a table of files by one task: it reads the changes, decides them, writes new
files and the key log, and commits.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ...config.machine import cores
from ...engine.source import Source
from ...lake.failpoints import reach
from ...lake.table import LakeTable, LakeTables, commit_info
from ...model.types import schema_of
from ..audit import RESULT_LOST, Audit
from ..auditor import (
    NO_ROWS,
    BatchAuditor,
    append_source,
    appended_rows,
    batch_columns,
    read_sorted,
    source_of,
)
from ..change_batch import ChangeBatch, audit_of
from ..merge_result import ApplyOutcome, MergeResult
from ..text_renderer import TextRenderer
from .rewrite import merge


@dataclass(frozen=True)
class TaskLocalMerge:
    """Merges a located batch into a table.

    The changes are in memory. If they need more than a third of `memory_bytes`, or touch files of more than
    `most` bytes, nothing is written, and the result is None. A task that runs again after its commit returns
    `RESULT_LOST`.

    `start`: the progress of the table for which the changes were selected; -1 if there is no progress. If the
    table has another progress, ConcurrentCommitError is raised, because changes would be applied twice.
    """

    one: ChangeBatch
    tables: LakeTables
    table: LakeTable
    start: int
    memory_bytes: int | None
    most: int | None = None

    def run(self) -> MergeResult | str | None:
        """Merges the batch; see the class for the results."""
        audit = audit_of(self.one)
        # Each merge has its own threads. For an archive, one thread writes the rows that the others render.
        with TextRenderer(audit, cores() + 1 if audit.archives else 1) as texts:
            rows = read_sorted(self.one.read(self._wanted), self._wanted, self.memory_bytes, texts)
            if rows is None:
                return None
            if (source := append_source(rows, self._key, self._schema, audit)) is not None:
                return self._added(source, audit, texts)
            return self._merged(rows, audit, texts)

    def _merged(self, rows: pa.Table, audit: Audit, texts: TextRenderer) -> MergeResult | str | None:
        one, source = self.one, source_of(rows, self._key, self._schema, audit.rules)
        auditor = BatchAuditor(audit, one.range.end, source, texts.parts)
        done = merge(
            self.tables, self.table, source, one.app_id, one.range.end, self.memory_bytes,
            commit_info(plan="task_local"), auditor, start=self.start, partition=one.partition,
            most=self.most, log_only=audit.log_only,
        )  # fmt: skip
        return None if done is None else auditor.result(done) or RESULT_LOST

    def _added(self, source: Source, audit: Audit, texts: TextRenderer) -> MergeResult | str:
        """Appends the rows that the changes add, without reading the table."""
        one = self.one
        if self.start >= one.range.end:
            return RESULT_LOST
        auditor = BatchAuditor(audit, one.range.end, source, texts.parts)
        batch = auditor.decide(NO_ROWS)
        auditor.start_log(texts.pool)
        done = ApplyOutcome(version=self.table.version, plan="append")
        if audit.log_only:
            auditor.finish()
            return auditor.result(done) or RESULT_LOST
        part = self.table.files.part((rows := appended_rows(source, batch)).schema)
        part.write(rows)
        files = part.close_all()
        auditor.finish()
        if auditor.end is not None:
            reach("delta.local")
            info = commit_info(plan="append")
            version = self.table.append(files, one.app_id, auditor.end, self.start, info)
            done = ApplyOutcome(inserted=rows.num_rows, version=version, plan="append")
        return auditor.result(done) or RESULT_LOST

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self.one.relation.key)

    @property
    def _schema(self) -> pa.Schema:
        return schema_of(self.one.target_columns)

    @property
    def _wanted(self) -> pa.Schema:
        return batch_columns(self.one.extra, self._schema)
