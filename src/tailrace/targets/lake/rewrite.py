"""Merge by rewriting: files with a changed key are rewritten, and all others stay.

*Find*: of files whose key range overlaps that of the changes, only the key columns are read. Rows are matched
to changes by hash. *Write*: each touched file is streamed to a new part. In each batch, the rows that change
are removed and their new images appended, so that files keep their key ranges. *Commit*: the files are
replaced by the parts, with the progress, in one commit on exactly the version that was read. After a
concurrent commit all steps are repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...config.machine import cores
from ...engine.keys import Places, nth
from ...engine.source import Source
from ...errors import ConcurrentCommitError
from ...execution import InlineExecutor, thread_pool
from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ...lake.failpoints import reach
from ...lake.table import LakeTable, LakeTables
from ...model.positions import order_key
from ..merge_result import ApplyOutcome
from .target_files import BATCH, NONE, SMALL, PartRewrite, TargetFiles, column_range, other_columns

if TYPE_CHECKING:
    from ..auditor import BatchAuditor

_ATTEMPTS = 5


@dataclass(frozen=True)
class TargetVersion:
    """The files of one version of a target.

    Attributes:
        reader: reads and writes files of the target.
        version: the version.
        files: the files, see `LakeTable.data_files`.
        columns: the target's columns.
    """

    reader: DataFiles
    version: int
    files: tuple[dict[str, Any], ...]
    columns: pa.Schema

    @staticmethod
    def of(table: LakeTable, first: str) -> TargetVersion:
        """Returns the open version; `first`: the first key column, by whose ranges files are skipped."""
        return TargetVersion(table.files, table.version, tuple(table.data_files(first)), table.schema)


@dataclass(frozen=True)
class TouchedRows:
    """The rows of a target that change.

    Attributes:
        files: the files that were scanned.
        matches: for each of these files the numbers of the rows, and their changes.
        replaced: the files that are replaced.
    """

    files: list[dict[str, Any]]
    matches: list[tuple[Places, Places]]
    replaced: list[dict[str, Any]]

    @property
    def changes(self) -> Places:
        """The changes of existing rows."""
        return np.concatenate([NONE, *[changes for _, changes in self.matches]])


class Rewrite:
    """A merge of changes into one version of a table."""

    def __init__(
        self,
        target: TargetVersion,
        source: Source,
        memory_bytes: int | None,
        auditor: BatchAuditor,
        partition: Mapping[str, str] | None = None,
    ) -> None:
        self._target, self._auditor, self._partition = target, auditor, partition
        self._threads = cores()
        # The changes may use half of the memory; a batch that is copied is in memory about three times.
        share = BATCH if memory_bytes is None else memory_bytes // 2 // self._threads // 3
        others = other_columns(target.columns, source.schema.names)
        self._files = TargetFiles(target.reader, source, min(BATCH, share), others)

    def find(self, most: int | None = None) -> TouchedRows | None:
        """Finds the rows of the changes, and decides the changes. Returns None if more than `most` bytes of
        files would be rewritten."""
        first = self.source.known_by[0]
        files = [] if self._auditor.ignores_rows else list(self._target.files)
        files = [f for f in files if self._files.may_touch(*column_range(f, first))]
        with self._pool(files) as pool:
            touched = list(pool.map(lambda f: self._files.find(f["path"]), files))
            matches = [(rows, keys) for rows, keys, _ in touched]
            if most is not None and self._bytes(files, matches) > most:
                return None
            self._decide(files, matches, [keys for _, _, keys in touched])
            if self._auditor.empties_target:
                return self._emptied(pool)
        matches = self._effective(matches)
        return TouchedRows(
            files, matches, [f for f, (rows, _) in zip(files, matches, strict=True) if len(rows)]
        )

    def write(self, found: TouchedRows) -> list[lake.AddedFile]:
        """Writes the parts for the replaced files, and the key log of the changes."""
        with self._pool(found.replaced) as pool:
            writing = pool.map(self._files.write, self._plan(found))
            self._auditor.start_log(pool)
            self._auditor.finish()
            return [part for parts in writing for part in parts]

    def outcome(self, found: TouchedRows) -> ApplyOutcome:
        """Returns the numbers of inserted, updated and deleted rows, without those that a truncate removes
        with their files."""
        changes = found.changes
        deleted = int(self.source.deletes[changes].sum())
        return ApplyOutcome(len(self.added(found)), len(changes) - deleted, deleted)

    def added(self, found: TouchedRows) -> Places:
        """Returns the changes that add a row; without a key, once for each added copy."""
        source = self.source
        if source.net is not None:
            return np.repeat(source.last, np.maximum(source.net, 0))
        matched = np.zeros(source.rows.num_rows, np.bool_)
        matched[found.changes] = True
        counts = source.last[source.last >= 0]
        return counts[~(matched | source.deletes)[counts]]

    @property
    def source(self) -> Source:
        """The changes; after `find`, those that take effect."""
        return self._files.source

    def _pool(self, files: Sequence[dict[str, Any]]) -> Executor:
        size = self.source.rows.nbytes + sum(f["size_bytes"] for f in files)
        return thread_pool("rewrite", worth=size >= SMALL)

    def _bytes(self, files: list[dict[str, Any]], matches: list[tuple[Places, Places]]) -> int:
        """Returns the bytes of the files to rewrite if all changes take effect; 0 after a truncate."""
        if self._auditor.truncated:
            return 0
        return sum(int(f["size_bytes"]) for f, (rows, _) in zip(files, matches, strict=True) if len(rows))

    def _decide(
        self, files: list[dict[str, Any]], matches: list[tuple[Places, Places]], living: list[Places]
    ) -> None:
        """Decides the changes, and keeps those that take effect as `source`."""
        counts = np.bincount(np.concatenate([NONE, *living]), minlength=len(self.source.last))

        def rows_of(wanted: Places) -> tuple[Places, pa.Table]:
            found = [self._rows_of(f["path"], *one, wanted) for f, one in zip(files, matches, strict=True)]
            none = pa.Table.from_batches([], self.source.schema)
            keys = np.concatenate([NONE, *[k for k, _ in found]])
            return keys, pa.concat_tables([none, *[t for _, t in found]])

        self._files = replace(self._files, source=self._auditor.remaining(self.source, counts, rows_of))

    def _rows_of(self, name: str, rows: Places, keys: Places, wanted: Places) -> tuple[Places, pa.Table]:
        """Returns the wanted keys among those of matched rows, and their rows."""
        selected = np.isin(keys, wanted)
        return keys[selected], self._files.rows_of(name, rows[selected])

    def _effective(self, matches: list[tuple[Places, Places]]) -> list[tuple[Places, Places]]:
        """Returns the matched rows that a change affects, and these changes. Of a keyless table these are the
        first copies, as many as are removed."""
        last, net = self.source.last, self.source.net
        if net is None:
            counts = [last[keys] >= 0 for _, keys in matches]
        else:
            every = np.concatenate([NONE, *[keys for _, keys in matches]])
            ends = np.cumsum([0, *[len(keys) for _, keys in matches]])
            removed = nth(every) < -net[every]
            counts = [removed[a:b] for a, b in pairwise(ends)]
        return [(rows[c], last[keys[c]]) for (rows, keys), c in zip(matches, counts, strict=True)]

    def _emptied(self, pool: Executor) -> TouchedRows:
        """Returns the rows that a truncate removes: all files or, if other sources share the target, the
        rows of this source."""
        every = list(self._target.files)
        if not self._partition:
            return TouchedRows([], [], every)
        source, partition = self.source, self._partition
        delete = source.rows.num_rows
        rows = pa.concat_tables([source.rows, pa.table([pa.nulls(1, f.type) for f in source.rows.schema],
                                                       schema=source.rows.schema)])  # fmt: skip
        deletes = np.append(source.deletes, True)
        self._files = replace(self._files, source=replace(source, rows=rows, deletes=deletes))
        own_rows = list(pool.map(lambda f: self._files.rows_with(f["path"], partition), every))
        matches = [(rows, np.full(len(rows), delete)) for rows in own_rows]
        return TouchedRows(every, matches, [f for f, rows in zip(every, own_rows, strict=True) if len(rows)])

    def _plan(self, found: TouchedRows) -> list[PartRewrite]:
        """Returns the parts to write.

        New rows are appended to the rewritten file with the greatest keys. If there are many, or if no file
        is rewritten, they become a separate part.
        """
        source, rewrites = self.source, list[PartRewrite]()
        last, greatest = -1, None
        for file, (rows, changes) in zip(found.files, found.matches, strict=True):
            if not len(rows):
                continue
            rewrites += self._files.rewrites(file["path"], file["size_bytes"], rows, changes)
            high = column_range(file, source.known_by[0])[1]
            if greatest is None or (high is not None and high >= greatest):
                last, greatest = len(rewrites) - 1, high
        new = self.added(found)
        separate = last < 0 or source.rows.nbytes * len(new) // max(1, source.rows.num_rows) > lake.SMALL_FILE
        if len(new) and separate:
            rewrites.append(PartRewrite("", [], NONE, NONE, new))
        elif len(new):
            rewrites[last] = replace(rewrites[last], added=new)
        return rewrites


def count_rows(files: Sequence[dict[str, Any]]) -> int:
    """Returns the number of rows of files by their statistics."""
    return sum(f["num_records"] or 0 for f in files)


def merge(
    tables: LakeTables,
    table: LakeTable,
    source: Source,
    app_id: str,
    end: int,
    memory_bytes: int | None,
    info: dict[str, str],
    auditor: BatchAuditor,
    *,
    start: int,
    partition: Mapping[str, str] | None = None,
    most: int | None = None,
    log_only: bool = False,
) -> ApplyOutcome | None:
    """Merges changes into a table once; returns an outcome without counts if the table has them already.

    Args:
        tables: the tables of its format.
        table: the table, open.
        source: the changes.
        app_id: the application id of the progress.
        end: the end of the batch.
        memory_bytes: the memory that the merge may use; None: no limit.
        info: commit info.
        auditor: decides the changes.
        start: the progress of the table for which the changes were selected; -1 if there is no progress.
        partition: see `ChangeBatch`.
        most: if the changes touch files of more bytes, nothing is written, and the result is None.
        log_only: only the key log is written; the open version is the one before the changes.

    Raises:
        ConcurrentCommitError: another process has moved the progress.
    """
    for attempt in range(_ATTEMPTS):
        progress = order_key(table.progress(app_id)) if attempt else start
        if progress >= end:
            break
        if start != progress:
            raise ConcurrentCommitError.moved(table.name, app_id, start, progress)
        work = Rewrite(TargetVersion.of(table, source.known_by[0]), source, memory_bytes, auditor, partition)
        if (found := work.find(None if log_only else most)) is None:
            return None
        if log_only:
            auditor.start_log(InlineExecutor())
            auditor.finish()
            return ApplyOutcome(version=table.version, plan="task_local")
        parts = work.write(found)
        if (decided_end := auditor.end) is None:
            return ApplyOutcome(version=table.version, plan="task_local")
        try:
            version = table.exchange(found.replaced, parts, app_id, decided_end, info)
        except ConcurrentCommitError:
            if attempt == _ATTEMPTS - 1:
                raise
            table = tables.open(table.name)
            continue
        reach("delta.merged")
        done = replace(work.outcome(found), version=version, plan="task_local")
        if auditor.empties_target and not partition:
            return replace(done, deleted=done.deleted + count_rows(found.replaced), plan="replace_all")
        return done
    return ApplyOutcome(version=table.version, plan="task_local")
