"""A merge into a Delta table inside one task that also finds what became of each change, and writes the key
log of it: one Spark job does what otherwise takes several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from .auditor import Audit, BatchAuditor, held, row_of, source_of, wanted
from .delta_local import TOO_LARGE, info, result
from .delta_rewrite import merge


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
