"""A merge into a Delta table inside one task that also finds what became of each change, and writes the key
log of it: one Spark job does what otherwise takes several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...lake import delta as lake
from ...lake.failpoints import reach
from .audit import Audit, row_of
from .auditor import BatchAuditor, archived, held, source_of, wanted
from .base import Outcome
from .delta_local import TOO_LARGE, append, info, result
from .delta_rewrite import merge


@dataclass(frozen=True)
class AuditTask:
    """The function of the one task that gets all changes: `SEQ`, `OPER`, what `extra` names (see
    `engine.columns`), and the data columns.

    They are held in memory: when they take more than a third of `memory_bytes`, nothing is written, and the
    result says so (`TOO_LARGE`). A task that runs again after its commit has nothing to tell.

    `follows`: the progress that the table had when they were chosen; -1: none. With another one they are
    refused with ConcurrentCommitError: some would be judged, and added, that are there already.
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

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = held(batches, self.wanted, self.memory_bytes)
        if rows is None:
            yield result(file=TOO_LARGE)
            return
        if self.audit.rules.mode == "archive":
            yield self._archived(rows)
            return
        source = source_of(rows, self.key, self.schema, self.audit.rules)
        auditor = BatchAuditor(self.audit, self.upto, source)
        done = merge(
            self.path, source, self.app_id, self.upto, self.memory_bytes, info(plan="task_local"), auditor,
            follows=self.follows,
        )  # fmt: skip
        yield row_of(done, auditor.told(done))

    def _archived(self, changes: pa.Table) -> pa.RecordBatch:
        """Appends the changes as rows; nothing is looked up."""
        source, rows = archived(changes, self.schema)
        auditor = BatchAuditor(self.audit, self.upto, source)
        if (reached := lake.progress(self.path, self.app_id)) >= self.upto:
            return row_of(Outcome(version=reached), None)
        with ThreadPoolExecutor(1, thread_name_prefix="key log") as pool:
            auditor.judge(np.zeros(1, np.bool_), pool)
            part = lake.Part(self.path, self.schema)
            part.write(rows)
            added = part.close()
            auditor.finish()
        reach("delta.local")
        files, words = [added] if added else [], info(plan="append")
        version = append(self.path, files, self.app_id, self.upto, self.follows, words)
        done = Outcome(inserted=rows.num_rows, version=version, plan="append")
        return row_of(done, auditor.told(done))

    @property
    def wanted(self) -> pa.Schema:
        """The columns of the batches it gets."""
        return wanted(self.extra, self.schema)
