"""Decides the changes of one shard of a large batch: finds their rows in the target, and writes the resulting
images to a file, for the tasks that write the target's files.

Rows of the key log and exceptions are written to files that the driver commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.batch import Batch
from ...engine.columns import KEPT, OP, SEQ, UPSERT, one
from ...engine.decide import NAMES
from ...engine.keys import Places
from ...engine.rules import ENDING
from ...engine.source import Source, ordered
from ...execution import InlineExecutor
from ...lake import delta as lake
from ...model.change import DELETE
from ...model.sequence import matrix, number_of, numbers_of
from ...model.types import schema_of
from ..audit import Audit
from ..auditor import NO_ROWS, BatchAuditor, append_source, appended_rows, source_of
from ..change_batch import ChangeBatch
from ..merge_result import ApplyOutcome, MergeResult
from ..scratch import ScratchFile, ScratchWriter
from .rewrite import Rewrite, TargetVersion, TouchedRows

ROW = "header__row"
"""Column of resulting images: the number of the target's row that the image replaces."""
NUMBER = "header__number"
"""Column of flagged changes: the change number."""
_ROWS = 1 << 16


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard; `first`: whether it is the first shard, which handles a truncate."""

    files: tuple[ScratchFile, ...]
    first: bool = False

    @property
    def rows(self) -> int:
        """The number of change rows."""
        return sum(one.rows for one in self.files)

    def read(self, columns: pa.Schema, before: str | None) -> pa.Table:
        """Returns the changes in order, only those before a `change_seq` if one is given."""
        rows = pa.concat_tables([columns.empty_table(), *(one.read() for one in self.files)])
        if before is not None:
            rows = rows.filter(pc.less(rows[SEQ], before))
        return ordered(rows)


@dataclass(frozen=True)
class ShardResult:
    """Result of the merge of a shard.

    Attributes:
        found: the result as of a batch; all rows of the key log are in its parts.
        last: the greatest change number; None if the shard has no changes.
        file: the resulting images: first those that replace rows, file by file in the order of the rows, then
            new rows in the order of the key. None if there are no images.
        spans: of each of the target's files that has such rows its number, and which rows of `file` they are.
        partial: some images leave columns out.
        emptied: whether a truncate removes all rows of the target.
        exceptions_file: the file of the exceptions.
        flagged: the numbers of flagged changes; None if no change is flagged.
        conflicts: conflict -> its first changes (`change_seq`, the error in their values), as many as are
            needed to find the end of the batch.
        parts: rows that were written to the target's folder already; `file` does not have them.
    """

    found: MergeResult
    last: int | None = None
    file: ScratchFile | None = None
    file_ranges: tuple[tuple[int, int, int], ...] = ()
    partial: bool = False
    emptied: bool = False
    exceptions_file: lake.AddedFile | None = None
    flagged: ScratchFile | None = None
    conflicts: Mapping[str, Sequence[tuple[str, str | None]]] = field(default_factory=dict)
    parts: tuple[lake.AddedFile, ...] = ()

    @property
    def new(self) -> tuple[int, int]:
        """The range of the new rows in `file`."""
        start = self.file_ranges[-1][2] if self.file_ranges else 0
        return start, start if self.file is None else self.file.rows


@dataclass(frozen=True)
class ShardTask:
    """Decides the changes of a shard of a located batch.

    Attributes:
        one: the batch.
        audit: how its changes are decided.
        columns: the columns of the shards' files.
        target: the version of the target that is read.
        folder: the folder for the resulting images.
        memory: the memory that a task may use; None: no limit.
        truncates: the `change_seq` of all truncates of the batch.
        before: the change before which the batch ends; None: it does not end early.
        appends: whether rows of an appending batch may be written to the target's folder.
    """

    one: ChangeBatch
    audit: Audit
    columns: pa.Schema
    target: TargetVersion
    folder: str
    memory: int | None
    truncates: tuple[str, ...]
    before: str | None = None
    appends: bool = True

    def __call__(self, shard: ShardFiles) -> ShardResult:
        one, rows = self.one, shard.read(self.columns, self.before)
        if not rows.num_rows:
            return ShardResult(MergeResult(ApplyOutcome(), None))
        key, schema = tuple(one.relation.key), schema_of(one.target_columns)
        truncates = [t for t in self.truncates if self.before is None or t < self.before]
        source = append_source(rows, key, schema, self.audit) if one.appends else None
        adds = source is not None
        source = source or source_of(rows, key, schema, self.audit.rules)
        auditor = BatchAuditor(self.audit, one.range.end, source, shard=truncates)
        if adds:
            auditor.decide(NO_ROWS)
            return self._added(source, auditor)
        work = Rewrite(self.target, source, self.memory, auditor, one.partition if shard.first else None)
        found = work.find()
        assert found is not None  # noqa: S101 - there is no limit for the touched bytes
        return self._remaining(work, found, auditor)

    def _added(self, source: Source, auditor: BatchAuditor) -> ShardResult:
        self._log(auditor)
        if self.audit.log_only:
            return self._result(auditor, ApplyOutcome())
        rows = appended_rows(source, auditor.batch)
        done = ApplyOutcome(inserted=rows.num_rows)
        if self.appends:
            return self._result(auditor, done, parts=tuple(self._part(rows)))
        writer = self._writer(source)
        _write(writer, replace(source, rows=rows), np.arange(rows.num_rows), None)
        return self._result(auditor, done, file=writer.close())

    def _part(self, rows: pa.Table) -> list[lake.AddedFile]:
        part = self.target.reader.part(rows.schema)
        part.write(rows)
        return part.close_all()

    def _writer(self, source: Source) -> ScratchWriter:
        extra = [(OP, pa.string()), (KEPT, pa.string()), (ROW, pa.int64())]
        return ScratchWriter(self.folder, pa.schema([*[pa.field(*f) for f in extra], *source.schema]))

    def _remaining(self, work: Rewrite, found: TouchedRows, auditor: BatchAuditor) -> ShardResult:
        self._log(auditor)
        if self.audit.log_only:
            return self._result(auditor, ApplyOutcome())
        source, names = work.source, [f["path"] for f in self.target.files]
        writer, file_ranges = self._writer(source), []
        for file, (rows, changes) in zip(found.files, found.matches, strict=True):
            if len(rows):
                start = writer.rows
                _write(writer, source, changes, rows)
                file_ranges.append((names.index(file["path"]), start, writer.rows))
        _write(writer, source, _sorted(source, work.added(found)), None)
        return self._result(
            auditor, work.outcome(found), file=writer.close(), file_ranges=tuple(file_ranges),
            partial=source.partial, emptied=auditor.empties_target,
        )  # fmt: skip

    def _log(self, auditor: BatchAuditor) -> None:
        auditor.start_log(InlineExecutor())
        auditor.finish()

    def _result(self, auditor: BatchAuditor, outcome: ApplyOutcome, **more: Any) -> ShardResult:
        batch, found = auditor.batch, auditor.result(outcome)
        assert found is not None  # noqa: S101 - the batch is decided
        seqs = batch.rows[SEQ]
        last = max((number_of(s) for s in seqs[len(seqs) - 1 :].to_pylist()), default=None)
        return ShardResult(
            found, last, exceptions_file=auditor.exceptions_file, flagged=self._flagged(batch),
            conflicts=_conflicts(batch, self.audit.counts), **more,
        )  # fmt: skip

    def _flagged(self, batch: Batch) -> ScratchFile | None:
        changes = batch.changes
        seqs = one(batch.rows[SEQ]).take(pa.array(changes[batch.flagged(changes)]))
        numbers = pa.table([pa.array(numbers_of(matrix(seqs)))], [NUMBER])
        writer = ScratchWriter(self.folder, numbers.schema)
        writer.write(numbers)
        return writer.close()


def _conflicts(batch: Batch, counts: Mapping[str, int]) -> dict[str, Sequence[tuple[str, str | None]]]:
    """Returns the first changes of each conflict, see `ShardResult`."""
    changes, rules = batch.changes, batch.rules
    found: dict[str, Sequence[tuple[str, str | None]]] = {}
    situation, outcomes = batch.decided.situation[changes], [batch.rules.outcome(n) for n in NAMES]
    for kind, policy in rules.on.items():
        limit, then = rules.limits.get(kind, (0, policy))
        has_conflict = np.array([o.conflict == kind for o in outcomes])[situation]
        if then not in ENDING or not has_conflict.any():
            continue
        rows = changes[has_conflict][: max(limit - counts.get(kind, 0), 0) + 1]
        whys = [None] * len(rows) if batch.why is None else batch.why.take(pa.array(rows)).to_pylist()
        found[kind] = list(zip(batch.rows[SEQ].take(pa.array(rows)).to_pylist(), whys, strict=True))
    return found


def _sorted(source: Source, changes: Places) -> Places:
    """Sorts changes by the first column of their key."""
    if not source.key or not len(changes):
        return changes
    column = one(source.rows[source.key[0]]).take(pa.array(changes))
    return np.asarray(changes[pc.array_sort_indices(column).to_numpy()])


def _write(writer: ScratchWriter, source: Source, changes: Places, rows: Places | None) -> None:
    """Writes the images of changes; `rows`: the numbers of the rows that they replace, None if they are
    new."""
    for start in range(0, len(changes), _ROWS):
        some = changes[start : start + _ROWS]
        replaced = None if rows is None else rows[start : start + _ROWS]
        images = source.rows.select(source.schema.names).take(pa.array(some)).cast(source.schema)
        deletes = source.deletes[some] & (replaced is not None)
        op = pa.array(np.where(deletes, DELETE, UPSERT), pa.string())
        none = pa.nulls(len(some), pa.string())
        kept = source.rows[KEPT].take(pa.array(some)) if source.partial else none
        row = pa.nulls(len(some), pa.int64()) if replaced is None else pa.array(replaced)
        writer.write(pa.table([op, kept, row, *images.columns], [OP, KEPT, ROW, *source.schema.names]))
