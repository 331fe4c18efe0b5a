"""The merge of a large batch into a table of files by several tasks.

*Split*: tasks write the rows of each shard to files (`key_split`). *Decide*: one task per shard decides its
changes (`shard_task`). *Write*: tasks write the files of the target that change (`write_task`). If only Spark
may write the target, or if too many bytes change, Spark's MERGE writes the resulting images (`spark_merge`).
*Commit*: exceptions, then the target with its progress, on exactly the version that was read. No row passes
through the driver. The caller commits the key log.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...config.machine import cores
from ...engine.columns import one as whole
from ...errors import ApplyError, ConcurrentCommitError
from ...execution import Job, executor_of, map_tasks, slots
from ...lake import delta as lake
from ...lake.failpoints import reach
from ...lake.table import LakeTable, LakeTables, commit_info, open_at
from ...model.positions import order_key
from ...model.types import schema_of
from ..audit import Audit
from ..auditor import batch_columns
from ..base import missing_baseline
from ..change_batch import ChangeBatch, FilePart, audit_of
from ..key_split import LinkTask, Split, SplitTask, links
from ..merge_result import ApplyOutcome, Conflicts, MergeResult
from ..plans import Limits, TableSize, is_local
from ..scratch import ScratchFile, scratch
from .rewrite import TargetVersion
from .shard_task import NUMBER, ShardFiles, ShardResult, ShardTask
from .write_task import WriteTask, part_inputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_I = TypeVar("_I")
_R = TypeVar("_R")
_ATTEMPTS = 5
_GROWS = 6
"""The approximate ratio of the memory of changes to the bytes of their files."""
_SHARE = 3
"""The changes of a shard may use one third of a task's memory; deciding them needs the rest."""


class SparkPlan(Protocol):
    """Merges batches by Spark into tables that only Spark may write, or in which Spark marks rows."""

    def target_rows(
        self, table: LakeTable, one: ChangeBatch, changes: Sequence[ScratchFile], folder: str
    ) -> TargetVersion:
        """Writes the rows of a table that changes may affect to files."""

    def merge(
        self,
        table: LakeTable,
        one: ChangeBatch,
        files: Sequence[ScratchFile],
        end: int,
        outcome: ApplyOutcome,
        *,
        partial: bool,
        emptied: bool,
        marks: bool,
    ) -> ApplyOutcome:
        """Merges the resulting images of a batch and commits; returns the outcome with plan and version.

        Args:
            table: the table, open.
            one: the batch.
            files: the resulting images, see `ShardResult`.
            end: the progress of the table afterwards.
            outcome: the numbers of rows.
            partial: some images leave columns out.
            emptied: a truncate removes all rows of the source.
            marks: rows are marked in deletion vectors, which are enabled for the table.

        Raises:
            ConcurrentCommitError: another process committed since the table was opened.
        """


@dataclass(frozen=True)
class ShardedMerge:
    """Merges batches by shards.

    Attributes:
        tables: the tables of the target's format.
        spark: the session whose tasks may merge; None: threads of this process do.
        limits, memory: see `LakeTarget`.
        by_spark: the plan of Spark's MERGE; None: the format has none.
    """

    tables: LakeTables
    spark: SparkSession
    limits: Limits
    memory: int | None
    by_spark: SparkPlan | None = None

    def merged(self, one: ChangeBatch) -> MergeResult:
        """Merges a batch and returns its result; the table has the batch's layout.

        Raises:
            ConcurrentCommitError: other processes commit so often that the batch cannot be merged.
        """
        began = time.monotonic()
        for attempt in range(_ATTEMPTS):
            try:
                done = self._merged(one)
                return replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))
            except ConcurrentCommitError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _merged(self, one: ChangeBatch) -> MergeResult:
        tables = self.tables
        if not tables.exists(one.target):
            raise missing_baseline(one.table)
        if one.log_only:
            table = open_at(tables, one.target, one.app_id, one.range.lower)
        else:
            table = tables.open(one.target)
        progress = order_key(table.progress(one.app_id))
        if not one.log_only and one.audit is None and progress >= one.range.end:
            return MergeResult(ApplyOutcome(version=table.version), one.range.end)
        missing = {c.name for c in one.target_columns} - set(table.schema.names)
        if missing and not one.log_only:
            raise ApplyError(
                f"the target has no column {', '.join(sorted(missing))}",
                where=one.table,
                hint="another process removed it: `tailrace resync` the table",
            )
        if one.audit is not None and progress > one.range.lower and not one.log_only:
            # The table has changes that are not in the key log.
            end, audit = min(progress, one.range.end), replace(one.audit, log_only=True)
            done = self._merged(replace(one.between(one.range.start, end), log_only=True, audit=audit))
            until = tables.open_until(one.target, one.app_id, end)
            return replace(done, outcome=replace(done.outcome, version=until.version if until else None))
        with scratch(tables.scratch_folder(one.target)) as folder:
            rest = one.located()
            if not one.log_only:
                rest = replace(rest, range=one.range.later_than(progress))
            return MergeAttempt(self, rest, table, folder).run()


@dataclass(frozen=True)
class MergeAttempt:
    """One attempt to merge a batch into the open version of a table."""

    merge: ShardedMerge
    one: ChangeBatch
    table: LakeTable
    folder: str

    def run(self) -> MergeResult:
        """Merges and commits."""
        one, audit = self.one, self._audit()
        columns = batch_columns(one.extra, schema_of(one.target_columns))
        shards, truncates = self._split(columns)
        target, plain = self._target(shards)
        task = ShardTask(
            one, audit, columns, target, self.folder, self._memory, truncates,
            appends=self.table.accepts_files,
        )  # fmt: skip
        results = self._map("decide", task, shards, [shard.rows for shard in shards])
        if (ends := _ends(results, audit)) is not None:
            self._discard(results, audit)
            task = replace(task, before=ends[0][0])
            results = self._map("decide", task, shards, [shard.rows for shard in shards])
        done = replace(_combined(one, results, ends), parts=self._with_flagged_counts(results, audit))
        if done.end is None or audit.log_only:
            return replace(done, outcome=ApplyOutcome(version=self.table.version))
        try:
            self._commit_exceptions(done, results, audit)
            return replace(done, outcome=self._written(target, results, done, done.end, plain=plain))
        except ConcurrentCommitError:
            if audit.keylog is not None:
                _delete(audit.keylog.path, done.parts)
            _delete(self.table.files.folder, [part for result in results for part in result.parts])
            raise

    def _audit(self) -> Audit:
        audit = audit_of(self.one)
        log = audit.keylog and replace(audit.keylog, max_returned_rows=0)
        return replace(audit, keylog=log, start=self.one.range.lower)

    def _target(self, shards: Sequence[ShardFiles]) -> tuple[TargetVersion, bool]:
        """Returns the version in which rows of the changes are found, and whether its files may be
        replaced."""
        plain, by_spark = self.table.replaces_files, self.merge.by_spark
        if self.one.appends or plain or by_spark is None:
            return TargetVersion.of(self.table, self._by[0]), plain
        files = [file for shard in shards for file in shard.files]
        return by_spark.target_rows(self.table, self.one, files, self.folder), False

    @property
    def _by(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return tuple(self.one.relation.key or [c.name for c in self.one.target_columns])

    # Splitting.

    def _split(self, columns: pa.Schema) -> tuple[list[ShardFiles], tuple[str, ...]]:
        """Writes the shards of the batch; returns them, and the `change_seq` of all truncates."""
        one = self.one
        by = (columns.names[0],) if one.appends else self._by
        linked = not one.appends and one.counts.get("key_changes" if one.relation.key else "U")
        files = one.parts()
        found = self._links(columns, by, files) if linked else None
        task = SplitTask(one, columns, by, self._shard_count(), self.folder, found)
        splits: list[Split] = self._map("split", task, files, [1] * len(files))
        by_shard: dict[int, list[ScratchFile]] = {}
        for number, file in (each for split in splits for each in split.files):
            by_shard.setdefault(number, []).append(file)
        shards = [
            ShardFiles(tuple(files), first=n == 0) for n, (_, files) in enumerate(sorted(by_shard.items()))
        ]
        return shards, tuple(sorted({seq for split in splits for seq in split.truncates}))

    def _links(
        self, columns: pa.Schema, by: tuple[str, ...], files: Sequence[FilePart]
    ) -> ScratchFile | None:
        task = LinkTask(self.one, columns, by, self.folder)
        found = self._map("find key changes", task, files)
        if alone := tuple(images for _, images in found if images is not None):
            found += self._map("find key changes", replace(task, alone=alone), files)
        return self._map("link keys", partial(links, folder=self.folder), [found])[0]

    def _shard_count(self) -> int:
        """Returns the number of shards: the number of tasks that run at the same time, or more if memory
        requires it."""
        size = 0
        for file in self.one.files:
            fs, path = lake.filesystem(file)
            size += fs.get_file_info(path).size
        most = None if self._memory is None else max(self._memory // _SHARE, 1)
        return max(self._slots, 1 if most is None else -(-size * _GROWS // most))

    @property
    def _changes(self) -> int:
        return sum(self.one.counts.get(kind, 0) for kind in "IUD")

    @property
    def _slots(self) -> int:
        return slots(executor_of(self.merge.spark, self._changes))

    @property
    def _memory(self) -> int | None:
        """The memory that one task may use; the tasks of one machine share its memory."""
        memory, count = self.merge.memory, self._slots
        return memory if memory is None or count > cores() else memory // count

    def _map(
        self,
        step: str,
        task: Callable[[_I], _R],
        inputs: Sequence[_I],
        weights: Sequence[int] | None = None,
    ) -> list[_R]:
        text = f"apply {self.one.table}: {self._changes:,} changes, {len(inputs)} tasks ({step})"
        job = Job("apply", text, self._changes, counts=step == "decide")
        return map_tasks(task, inputs, session=self.merge.spark, job=job, weights=weights)

    # Key log and exceptions.

    def _with_flagged_counts(
        self, results: Sequence[ShardResult], audit: Audit
    ) -> tuple[lake.AddedFile, ...]:
        """Returns the parts of the key log, with `flagged_count` as of the flagged changes of all shards."""
        log, parts = audit.keylog, [part for one in results for part in one.found.parts]
        flagged = tuple(one.flagged for one in results if one.flagged is not None)
        if log is None or not flagged or len(results) == 1:
            return tuple(parts)
        new_parts = self._map(
            "count flagged changes",
            FlaggedCountTask(log.path, log.schema, flagged, log.header.flagged),
            parts,
        )
        _delete(log.path, parts)
        return tuple(new_parts)

    def _commit_exceptions(self, done: MergeResult, results: Sequence[ShardResult], audit: Audit) -> None:
        """Commits the exceptions."""
        if audit.plain or not audit.rules.keeps:
            return
        audit.exceptions.remove_after(audit.table, audit.start, audit.counts)
        if files := [one.exceptions_file for one in results if one.exceptions_file is not None]:
            counts = Conflicts(tally=done.tally).counted(audit.rules, audit.counts)
            audit.exceptions.add_files(
                files, audit.table, order_key(done.end), start=audit.start, counts=counts
            )

    def _discard(self, results: Sequence[ShardResult], audit: Audit) -> None:
        """Deletes the files of a decision that is repeated."""
        if audit.keylog is not None:
            _delete(audit.keylog.path, [part for one in results for part in one.found.parts])
        _delete(
            audit.exceptions.path, [one.exceptions_file for one in results if one.exceptions_file is not None]
        )
        _delete(self.table.files.folder, [part for one in results for part in one.parts])

    # Writing.

    def _written(
        self,
        target: TargetVersion,
        results: Sequence[ShardResult],
        done: MergeResult,
        end: int,
        *,
        plain: bool,
    ) -> ApplyOutcome:
        """Writes and commits the target."""
        one, outcome = self.one, done.outcome
        if one.appends and self.table.accepts_files:
            added = [part for result in results for part in result.parts]
            start = order_key(self.table.progress(one.app_id))
            version = self.table.append(added, one.app_id, end, start, commit_info(plan="append"))
            return replace(outcome, version=version, plan="append")
        emptied, size = any(result.emptied for result in results), TableSize.of(self.table)
        numbers = {number for result in results for number, _, _ in result.file_ranges}
        replaced = [target.files[number] for number in sorted(numbers)]
        if emptied and not one.partition:
            replaced = list(target.files)
            outcome = replace(outcome, deleted=outcome.deleted + size.rows)
        limits, touched = self.merge.limits, sum(f["size_bytes"] for f in replaced)
        most = max(limits.most(self._changes, size), limits.local_bytes)
        by_spark = self.merge.by_spark
        if by_spark is not None and (not plain or (not emptied and touched > most)):
            return by_spark.merge(
                self.table, one, [r.file for r in results if r.file], end, outcome,
                partial=any(r.partial for r in results), emptied=emptied,
                marks=plain or not is_local(size, limits),
            )  # fmt: skip
        schema = schema_of(one.target_columns)
        task = WriteTask(
            target, tuple(one.relation.key), schema, any(r.partial for r in results), self._memory
        )
        work = part_inputs(target, results, self._by[0])
        parts = [part for parts in self._map("write", task, work, [w.weight for w in work]) for part in parts]
        version = self.table.exchange(replaced, parts, one.app_id, end, commit_info(plan="rewrite"))
        reach("delta.merged")
        plan = "replace_all" if emptied and not one.partition else "rewrite"
        return replace(outcome, version=version, plan=plan)


@dataclass(frozen=True)
class FlaggedCountTask:
    """Rewrites a part of a key log with `flagged_count` as of all flagged changes: those in the files
    `flagged`, and the number `before` that were logged earlier."""

    path: str
    schema: pa.Schema
    flagged: tuple[ScratchFile, ...]
    before: int

    def __call__(self, part: lake.AddedFile) -> lake.AddedFile:
        numbers = np.sort(np.concatenate([whole(one.read()[NUMBER]).to_numpy() for one in self.flagged]))
        fs, folder = lake.filesystem(self.path)
        with pq.ParquetFile(f"{folder}/{part.path}", filesystem=fs) as file:
            tables = (self._counted(file.read_row_group(n), numbers) for n in range(file.num_row_groups))
            (new_part,) = lake.write_pieces(self.path, self.schema, tables)
        return new_part

    def _counted(self, rows: pa.Table, numbers: np.ndarray[Any, Any]) -> pa.Table:
        row_numbers = whole(rows["change_row_counter"]).to_numpy()
        count = pa.array(np.searchsorted(numbers, row_numbers, "right") + self.before)
        index = rows.schema.get_field_index("flagged_count")
        return rows.set_column(index, rows.schema.field(index).name, count).cast(self.schema)


def _ends(results: Sequence[ShardResult], audit: Audit) -> tuple[tuple[str, str, str], str | None] | None:
    """Returns the change before which the batch ends (`change_seq`, conflict, policy), and the error in its
    values; None if the batch does not end early."""
    found = []
    for kind, policy in audit.rules.on.items():
        limit, then = audit.rules.limits.get(kind, (0, policy))
        every = sorted(each for one in results for each in one.conflicts.get(kind, ()))
        allowed = max(limit - audit.counts.get(kind, 0), 0)
        if len(every) > allowed:
            seq, why = every[allowed]
            found.append(((seq, kind, then), why))
    return min(found, default=None, key=lambda one: one[0])


def _combined(
    one: ChangeBatch, results: Sequence[ShardResult], ends: tuple[tuple[str, str, str], str | None] | None
) -> MergeResult:
    """Returns the sum of the shards' results, without the rows that a truncate removes."""
    counts, tally = Counter[str](), dict[str, tuple[int, str]]()
    for found in (result.found for result in results):
        counts += Counter(found.counts)
        for situation, (many, seq) in found.tally.items():
            before, first = tally.get(situation, (0, seq))
            tally[situation] = before + many, min(first, seq)
    end: int | None = one.range.end
    if ends is not None:
        end = max((result.last for result in results if result.last is not None), default=None)
    outcomes = [result.found.outcome for result in results]
    names = ("inserted", "updated", "deleted", "missing")
    outcome = ApplyOutcome(**{name: sum(getattr(each, name) for each in outcomes) for name in names})
    return MergeResult(
        outcome, end, {k: counts[k] for k in "IUDT"}, tally, ends and ends[0], (), ends and ends[1]
    )


def _delete(folder: str, parts: Sequence[lake.AddedFile]) -> None:
    fs, path = lake.filesystem(folder)
    for name in (name for part in parts for name in part.paths):
        fs.delete_file(f"{path}/{name}")
