"""Merge by rewriting: files that hold a changed key are written anew, all others stay as they are.

*Find*: of files whose range of keys the changes may meet, the key columns alone are read; rows are matched to
changes by hash. *Write*: such a file is streamed to a new part, without the rows that change, each batch with
its rows' new images behind it, so that files keep their ranges of keys. *Commit*: files out, parts in and the
progress in one commit on exactly the version that was read; if anybody wrote meanwhile, all is done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ...config.machine import cores
from ...engine.keys import Places, nth
from ...engine.source import Source
from ...errors import ConcurrentCommitError
from ...execution import InlineExecutor, thread_pool
from ...lake import delta as lake
from ...lake.failpoints import reach
from ...model.positions import order_key
from ..merge_result import ApplyOutcome
from .commit import exchange
from .table_info import actions
from .target_files import BATCH, NONE, SMALL, PartRewrite, TargetFiles, column_range, other_columns

if TYPE_CHECKING:
    from ..auditor import BatchAuditor

_ATTEMPTS = 5
_FILE = ("path", "size_bytes", "num_records")


@dataclass(frozen=True)
class TargetVersion:
    """The files of a target as of one version: add actions, flattened, and the target's columns."""

    path: str
    version: int
    files: tuple[dict[str, Any], ...]
    columns: pa.Schema

    @staticmethod
    def of(table: DeltaTable, path: str, first: str) -> TargetVersion:
        """The version that is open; `first`: the column whose ranges tell which files changes may meet."""
        found, columns = actions(table), lake.arrow_schema(table)
        names = [n for n in (*_FILE, f"min.{first}", f"max.{first}") if n in found.column_names]
        return TargetVersion(path, table.version(), tuple(found.select(names).to_pylist()), columns)


@dataclass(frozen=True)
class TouchedRows:
    """Rows of a target that change: of each of some files their numbers and their changes; `gone`: the files
    that are replaced."""

    files: list[dict[str, Any]]
    matches: list[tuple[Places, Places]]
    replaced: list[dict[str, Any]]

    @property
    def changes(self) -> Places:
        """The changes that meet rows."""
        return np.concatenate([NONE, *[changes for _, changes in self.matches]])


class Rewrite:
    """One merge of changes into a version of a table."""

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
        # The changes may take half of the memory; a batch being copied is there about three times.
        share = BATCH if memory_bytes is None else memory_bytes // 2 // self._threads // 3
        more = other_columns(target.columns, source.schema.names)
        self._files = TargetFiles(target.path, source, min(BATCH, share), more)

    def find(self, most: int | None = None) -> TouchedRows | None:
        """Finds the rows that changes meet, and decides the changes; None when more than `most` bytes of
        files would be written again."""
        blind = self._auditor.ignores_rows
        first = self.source.known_by[0]
        files = [
            f for f in self._target.files if not blind and self._files.may_touch(*column_range(f, first))
        ]
        with self._pool(files) as pool:
            touched = list(pool.map(lambda f: self._files.find(f["path"]), files))
            matches = [(rows, keys) for rows, keys, _ in touched]
            if most is not None and self._bytes(files, matches) > most:
                return None
            self._decide(files, matches, [keys for _, _, keys in touched])
            if self._auditor.empties_target:
                return self._emptied(pool)
        matches = self._counting(matches)
        return TouchedRows(
            files, matches, [f for f, (rows, _) in zip(files, matches, strict=True) if len(rows)]
        )

    def write(self, found: TouchedRows) -> list[lake.AddedFile]:
        """Writes new parts for the files that are replaced, and the key log of the changes."""
        with self._pool(found.replaced) as pool:
            writing = pool.map(self._files.write, self._plan(found))
            self._auditor.start_log(pool)
            self._auditor.finish()
            return [part for part in writing if part]

    def outcome(self, found: TouchedRows) -> ApplyOutcome:
        """Rows inserted, updated and deleted; without those that a truncate takes away with their files."""
        changes = found.changes
        deleted = int(self.source.deletes[changes].sum())
        return ApplyOutcome(len(self.added(found)), len(changes) - deleted, deleted)

    def added(self, found: TouchedRows) -> Places:
        """The changes that leave a row and meet none; without a key as often as copies come."""
        source = self.source
        if source.net is not None:
            return np.repeat(source.last, np.maximum(source.net, 0))
        matched = np.zeros(source.rows.num_rows, np.bool_)
        matched[found.changes] = True
        counts = source.last[source.last >= 0]
        return counts[~(matched | source.deletes)[counts]]

    @property
    def source(self) -> Source:
        """The changes; once they are decided, what remains of them."""
        return self._files.source

    def _pool(self, files: Sequence[dict[str, Any]]) -> Executor:
        size = self.source.rows.nbytes + sum(f["size_bytes"] for f in files)
        return thread_pool("rewrite", worth=size >= SMALL)

    def _bytes(self, files: list[dict[str, Any]], matches: list[tuple[Places, Places]]) -> int:
        """Bytes of the files to rewrite if all changes take effect; 0 after a truncate."""
        if self._auditor.truncated:
            return 0
        return sum(int(f["size_bytes"]) for f, (rows, _) in zip(files, matches, strict=True) if len(rows))

    def _decide(
        self, files: list[dict[str, Any]], matches: list[tuple[Places, Places]], living: list[Places]
    ) -> None:
        """Has the auditor decide what counts."""
        there = np.bincount(np.concatenate([NONE, *living]), minlength=len(self.source.last))

        def rows_of(wanted: Places) -> tuple[Places, pa.Table]:
            found = [self._rows_of(f["path"], *one, wanted) for f, one in zip(files, matches, strict=True)]
            none = pa.Table.from_batches([], self.source.schema)
            keys = np.concatenate([NONE, *[k for k, _ in found]])
            return keys, pa.concat_tables([none, *[t for _, t in found]])

        self._files = replace(self._files, source=self._auditor.remaining(self.source, there, rows_of))

    def _rows_of(self, name: str, rows: Places, keys: Places, wanted: Places) -> tuple[Places, pa.Table]:
        """Of a file's rows whose keys changes have, those with wanted keys."""
        mine = np.isin(keys, wanted)
        return keys[mine], self._files.rows_of(name, rows[mine])

    def _counting(self, matches: list[tuple[Places, Places]]) -> list[tuple[Places, Places]]:
        """Of the files' rows whose keys changes have, those with a change that counts, and these changes;
        without key the first copies, as many as go."""
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
        mine = list(pool.map(lambda f: self._files.rows_with(f["path"], partition), every))
        matches = [(rows, np.full(len(rows), delete)) for rows in mine]
        return TouchedRows(every, matches, [f for f, rows in zip(every, mine, strict=True) if len(rows)])

    def _plan(self, found: TouchedRows) -> list[PartRewrite]:
        """The pieces to write.

        Rows that are new go to the end of the file with the greatest keys, as far as files are written;
        many of them, or all when no file is, are a part of their own.
        """
        source, pieces = self.source, list[PartRewrite]()
        last, greatest = -1, None
        for file, (rows, changes) in zip(found.files, found.matches, strict=True):
            if not len(rows):
                continue
            pieces += self._files.pieces(file["path"], file["size_bytes"], rows, changes)
            high = column_range(file, source.known_by[0])[1]
            if greatest is None or (high is not None and high >= greatest):
                last, greatest = len(pieces) - 1, high
        new = self.added(found)
        separate = last < 0 or source.rows.nbytes * len(new) // max(1, source.rows.num_rows) > lake.SMALL_FILE
        if len(new) and separate:
            pieces.append(PartRewrite("", [], NONE, NONE, new))
        elif len(new):
            pieces[last] = replace(pieces[last], added=new)
        return pieces


def count_rows(files: Sequence[dict[str, Any]]) -> int:
    """The number of rows of files, as far as their statistics say."""
    return sum(f["num_records"] or 0 for f in files)


def merge(
    table: DeltaTable,
    path: str,
    source: Source,
    app_id: str,
    upto: int,
    memory_bytes: int | None,
    info: dict[str, str],
    auditor: BatchAuditor,
    *,
    follows: int,
    partition: Mapping[str, str] | None = None,
    most: int | None = None,
    logs: bool = False,
) -> ApplyOutcome | None:
    """Merges changes into a table, once: an outcome without counts when the table already has them.

    Args:
        table: the table, open.
        follows: the progress that the changes were chosen by (-1: none).
        own: see `ChangeBatch`.
        most: when changes touch files of more bytes, nothing is written: None.
        logs: only the key log is written; the open version is that of before the changes.

    Raises:
        ConcurrentCommitError: another process has moved the progress.
    """
    for attempt in range(_ATTEMPTS):
        reached = order_key(lake.reached(table, app_id)) if attempt else follows
        if reached >= upto:
            break
        if follows != reached:
            raise ConcurrentCommitError.moved(path, app_id, follows, reached)
        work = Rewrite(
            TargetVersion.of(table, path, source.known_by[0]), source, memory_bytes, auditor, partition
        )
        if (found := work.find(None if logs else most)) is None:
            return None
        if logs:
            auditor.start_log(InlineExecutor())
            auditor.finish()
            return ApplyOutcome(version=table.version(), plan="task_local")
        parts = work.write(found)
        if (end := auditor.end) is None:
            return ApplyOutcome(version=table.version(), plan="task_local")
        try:
            exchange(table, found.replaced, parts, app_id, end, info)
        except CommitFailedError:
            if attempt == _ATTEMPTS - 1:
                raise
            table = DeltaTable(path)
            continue
        reach("delta.merged")
        done = replace(work.outcome(found), version=table.version() + 1, plan="task_local")
        if auditor.empties_target and not partition:
            return replace(done, deleted=done.deleted + count_rows(found.replaced), plan="replace_all")
        return done
    return ApplyOutcome(version=table.version(), plan="task_local")
