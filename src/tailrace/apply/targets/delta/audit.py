"""A merge into a Delta table inside one task that also finds the outcome of each change, and writes the key
log of it: one Spark job does what otherwise takes several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ....config.machine import cores
from ....engine.source import Source
from ....lake import delta as lake
from ....lake.failpoints import reach
from ....model.types import arrow_type, schema_of
from ...images import images
from ...plan import TableBatch
from ...tasks import TOO_LARGE, result
from ..audit import Audit, Audited, merge_audited, row_of
from ..auditor import NONE_THERE, BatchAuditor, added_rows, held, only_adds, source_of, wanted
from ..outcome import ApplyOutcome
from ..rendering import Rendering
from .local import append, info
from .rewrite import merge

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class AuditTask:
    """The function of the one task that gets all changes: `SEQ`, `OPER`, what `extra` names (see
    `engine.columns`), and the data columns.

    They are held in memory: when they take more than a third of `memory_bytes`, nothing is written, and the
    result says so (`TOO_LARGE`). A task that runs again after its commit has nothing to tell.

    `follows`: the progress that the table had when they were chosen; -1: none. With another one they are
    refused with ConcurrentCommitError: some would be judged, and added, that are there already. `table`: the
    target, when the process has it open. `most`: when they touch files of more bytes, nothing is written
    either (`TOO_LARGE`).
    """

    path: str
    app_id: str
    upto: int
    key: tuple[str, ...]
    schema: pa.Schema
    extra: pa.Schema
    memory_bytes: int | None
    audit: Audit
    follows: int
    table: DeltaTable | None = None
    most: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # A merge has threads of its own. Of an archive's, one writes what the others have rendered.
        with Rendering(self.audit, cores() + 1 if self.audit.archives else 1) as texts:
            rows = held(batches, self.wanted, self.memory_bytes, texts)
            if rows is None:
                yield result(file=TOO_LARGE)
            elif (source := only_adds(rows, self.key, self.schema, self.audit)) is not None:
                yield self._added(source, texts)
            else:
                yield self._merged(rows, texts)

    def _merged(self, rows: pa.Table, texts: Rendering) -> pa.RecordBatch:
        source = source_of(rows, self.key, self.schema, self.audit.rules)
        auditor, words = BatchAuditor(self.audit, self.upto, source, texts.parts), info(plan="task_local")
        done = merge(
            self.path, source, self.app_id, self.upto, self.memory_bytes, words, auditor,
            follows=self.follows, table=self.table, most=self.most,
        )  # fmt: skip
        return result(file=TOO_LARGE) if done is None else row_of(done, auditor.audited(done))

    def _added(self, source: Source, texts: Rendering) -> pa.RecordBatch:
        """Appends rows that changes add; nothing is looked up."""
        if lake.progress(self.path, self.app_id) >= self.upto:
            return row_of(ApplyOutcome(version=lake.version(self.path)), None)
        auditor = BatchAuditor(self.audit, self.upto, source, texts.parts)
        auditor.judge(NONE_THERE)
        auditor.log(texts.pool)
        files = lake.write_part(self.path, rows := added_rows(source))
        auditor.finish()
        reach("delta.local")
        words = info(plan="append")
        version = append(self.path, files, self.app_id, self.upto, self.follows, words)
        done = ApplyOutcome(inserted=rows.num_rows, version=version, plan="append")
        return row_of(done, auditor.audited(done))

    @property
    def wanted(self) -> pa.Schema:
        """The columns of the batches it gets."""
        return wanted(self.extra, self.schema)


def audited(
    batch: TableBatch,
    audit: Audit,
    extras: Mapping[str, Column],
    *,
    path: str,
    app_id: str,
    follows: int,
    memory_bytes: int | None,
) -> Audited | str:
    """Runs such a merge of the changes behind `follows`, see `merge_audited`; `extras`: the columns of
    `engine.columns` that they have; else see `AuditTask`."""
    relation, upto = batch.relation, batch.upto
    rows = images(batch.changes, relation, after=follows, extras=extras)
    extra = pa.schema([(n, arrow_type(rows.schema[n].dataType.simpleString())) for n in extras])
    key, schema = tuple(relation.key), schema_of(relation.columns)

    def nothing() -> ApplyOutcome:
        version = lake.commit(path, [], progress={app_id: upto})
        return ApplyOutcome(version=lake.version(path) if version is None else version)

    one = AuditTask(path, app_id, upto, key, schema, extra, memory_bytes, audit, follows)
    return merge_audited(rows, one, upto, nothing)
