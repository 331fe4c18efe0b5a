"""Merge by rewriting: files that hold a changed key are written anew, all others stay as they are.

*Find*: of files whose range of keys the changes may meet, the key columns alone are read; rows are matched to
changes by hash. *Write*: such a file is streamed to a new part, without the rows that change, each batch with
its rows' new images behind it, so that files keep their ranges of keys. *Commit*: files out, parts in and the
progress in one commit on exactly the version that was read; if anybody wrote meanwhile, all is done again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ...config.machine import cores
from ...engine.keys import Places
from ...engine.source import Source
from ...errors import ConcurrentCommitError
from ...lake import delta as lake
from ...lake import guards
from ...lake.failpoints import reach
from ...lake.filestats import width
from .base import Outcome

if TYPE_CHECKING:
    from .auditor import BatchAuditor

_PART = lake.WHOLE_FILE // 2
"""About how large a written part shall be: several are written side by side, and fewer are touched."""
_BATCH = 64 << 20
_MANY = 4 << 20
_ATTEMPTS = 5


@dataclass(frozen=True)
class _Piece:
    """Row groups of a touched file that become one part: the rows that changes meet, in file order, and the
    changes they meet; `added`: changes whose rows come new at the end."""

    file: str
    groups: list[int]
    rows: Places
    changes: Places
    added: Places


class Rewrite:
    """One merge of a source into a table's files, as of the version that `table` has open."""

    def __init__(
        self,
        table: DeltaTable,
        path: str,
        source: Source,
        memory_bytes: int | None,
        auditor: BatchAuditor | None = None,
    ) -> None:
        self._table, self._path, self._source, self._auditor = table, path, source, auditor
        self._fs, self._folder = lake.filesystem(path)
        self._lanes = cores()
        # The changes may take half of the memory; a batch being copied is there about three times.
        share = _BATCH if memory_bytes is None else memory_bytes // 2 // self._lanes // 3
        self._batch = min(_BATCH, share)

    def run(self, app_id: str, upto: int, info: dict[str, str]) -> Outcome:
        """Merges and commits."""
        files = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        with ThreadPoolExecutor(self._lanes, thread_name_prefix="rewrite") as pool:
            files = [f for f in files if self._may_touch(f)]
            touched = list(pool.map(self._touched, files))
            met = [(rows, keys) for rows, keys, _ in touched]
            upto = self._decided(files, met, [keys for _, _, keys in touched], upto, pool)
            found = [self._counting(rows, keys) for rows, keys in met]
            pieces = self._plan(files, found)
            added = sum(len(piece.added) for piece in pieces)
            parts = [part for part in pool.map(self._write, pieces) if part]
            if self._auditor is not None:
                self._auditor.finish()
        if upto < 0:
            return Outcome(version=self._table.version(), plan="task_local")
        gone = [f for f, (rows, _) in zip(files, found, strict=True) if len(rows)]
        now = int(time.time() * 1000)
        reach("delta.local")
        guards.check()
        self._table.create_write_transaction(
            [
                *[RemoveAction(f["path"], True, now, f["size_bytes"], {}) for f in gone],
                *[AddAction(p.path, p.size, {}, p.modified, True, p.stats) for p in parts],
            ],
            mode="append",
            schema=self._table.schema(),
            commit_properties=CommitProperties(
                custom_metadata=info, app_transactions=[Transaction(app_id, upto)], max_commit_retries=0
            ),
        )
        reach("delta.merged")
        changes = np.concatenate([np.empty(0, np.int64), *[c for _, c in found]])
        deleted = int(self._source.deletes[changes].sum())
        return Outcome(added, len(changes) - deleted, deleted, self._table.version() + 1, "task_local")

    def _decided(
        self,
        files: list[dict[str, Any]],
        met: list[tuple[Places, Places]],
        living: list[Places],
        upto: int,
        pool: ThreadPoolExecutor,
    ) -> int:
        """Lets the auditor say what counts, and which change number is reached by it."""
        if self._auditor is None:
            return upto
        exists = np.zeros(len(self._source.last), np.bool_)
        for keys in living:
            exists[keys] = True

        def rows_of(wanted: Places) -> tuple[Places, pa.Table]:
            found = [self._rows_of(f["path"], *one, wanted) for f, one in zip(files, met, strict=True)]
            none = pa.Table.from_batches([], self._source.schema)
            keys = np.concatenate([np.empty(0, np.int64), *[k for k, _ in found]])
            return keys, pa.concat_tables([none, *[t for _, t in found]])

        self._source = self._auditor.decide(self._source, exists, rows_of, pool)
        return self._auditor.upto

    def _rows_of(self, name: str, rows: Places, keys: Places, wanted: Places) -> tuple[Places, pa.Table]:
        """Of a file's rows whose keys changes have, those with wanted keys."""
        mine = np.isin(keys, wanted)
        rows, found, begin = rows[mine], [], 0
        if len(rows):
            opened = self._open(name)
            for batch in self._batches(opened, list(range(opened.num_row_groups)), self._source.schema.names):
                low, high = np.searchsorted(rows, [begin, begin + batch.num_rows])
                found.append(batch.take(pa.array(rows[low:high] - begin)))
                begin += batch.num_rows
        return keys[mine], pa.Table.from_batches(found, self._source.schema)

    def _counting(self, rows: Places, keys: Places) -> tuple[Places, Places]:
        """Of a file's rows whose keys changes have, those with a change that counts, and these changes."""
        changes = self._source.last[keys]
        return rows[changes >= 0], changes[changes >= 0]

    def _may_touch(self, file: dict[str, Any]) -> bool:
        """Whether the file's range of the first key meets the changes'; only for types whose ranges mean the
        same to all writers of statistics."""
        key = self._source.rows[self._source.key[0]]
        low, high = (file.get(f"{edge}.{self._source.key[0]}") for edge in ("min", "max"))
        if low is None or high is None or not (pa.types.is_integer(key.type) or pa.types.is_date(key.type)):
            return True
        found = pc.min_max(key)
        if not found["max"].is_valid:  # no change at all
            return False
        return bool(low <= found["max"].as_py() and found["min"].as_py() <= high)

    def _open(self, name: str) -> pq.ParquetFile:
        # Read through a small buffer: whole row groups of other writers may be large.
        return pq.ParquetFile(f"{self._folder}/{name}", filesystem=self._fs, buffer_size=1 << 20)

    def _batches(
        self, file: pq.ParquetFile, groups: list[int], names: list[str], most: int = lake.ROW_GROUP
    ) -> Iterator[pa.RecordBatch]:
        """Row groups in batches of bounded size, in the schema's types; columns younger than the file are
        NULL."""
        wanted = pa.schema([self._source.schema.field(n) for n in names])
        have = [n for n in names if n in file.schema_arrow.names]
        size = max(1024, min(most, self._batch // width(file.metadata, groups, have)))
        # Threads read files side by side; more threads within each make it slower.
        for batch in file.iter_batches(size, row_groups=groups, columns=have, use_threads=False):
            arrays = [
                batch[f.name].cast(f.type) if f.name in have else pa.nulls(batch.num_rows, f.type)
                for f in wanted
            ]
            yield pa.record_batch(arrays, schema=wanted)

    def _touched(self, file: dict[str, Any]) -> tuple[Places, Places, Places]:
        """Numbers of the file's rows whose keys changes have, the numbers of those keys, and of those among
        them whose rows live."""
        source, rows, keys, living, begin = self._source, [], [], [], 0
        opened = self._open(file["path"])
        groups = list(range(opened.num_row_groups))
        marks = [source.mark] if source.mark else []
        # Large batches: each look-up begins with a hash table of the changes' keys.
        for batch in self._batches(opened, groups, [*source.key, *marks], _MANY):
            found = source.keys.find(batch.columns[: len(source.key)])
            here = np.flatnonzero(found >= 0)
            rows.append(here + begin)
            keys.append(found[here])
            alive = found[here]
            if source.mark:
                alive = alive[batch[source.mark].is_null().to_numpy(zero_copy_only=False)[here]]
            living.append(alive)
            begin += batch.num_rows
        empty = np.empty(0, np.int64)
        all_rows, all_keys, alive_keys = (np.concatenate([empty, *some]) for some in (rows, keys, living))
        return all_rows, all_keys, alive_keys

    def _plan(self, files: list[dict[str, Any]], found: list[tuple[Places, Places]]) -> list[_Piece]:
        """The pieces to write.

        Rows that are new go to the end of the file with the greatest keys, as far as files are written;
        many of them, or all when no file is, are a part of their own.
        """
        source = self._source
        met = np.zeros(source.rows.num_rows, np.bool_)
        pieces: list[_Piece] = []
        last, greatest = -1, None
        for file, (rows, changes) in zip(files, found, strict=True):
            if not len(rows):
                continue
            met[changes] = True
            pieces += self._pieces(file, rows, changes)
            high = file.get(f"max.{source.key[0]}")
            if greatest is None or (high is not None and high >= greatest):
                last, greatest = len(pieces) - 1, high
        counts = source.last[source.last >= 0]
        new = counts[~(met | source.deletes)[counts]]
        own = last < 0 or source.rows.nbytes * len(new) // max(1, len(met)) > lake.SMALL_FILE
        if len(new) and own:
            pieces.append(_Piece("", [], np.empty(0, np.int64), np.empty(0, np.int64), new))
        elif len(new):
            pieces[last] = replace(pieces[last], added=new)
        return pieces

    def _pieces(self, file: dict[str, Any], rows: Places, changes: Places) -> list[_Piece]:
        """A touched file in pieces of about `_PART` bytes, cut between row groups."""
        meta = self._open(file["path"]).metadata
        ends = np.cumsum([meta.row_group(g).num_rows for g in range(meta.num_row_groups)])
        many = -(-file["size_bytes"] // _PART)
        found, none = [], np.empty(0, np.int64)
        for groups in np.array_split(np.arange(len(ends)), max(1, many)):
            if not len(groups):
                continue
            begin = ends[groups[0] - 1] if groups[0] else 0
            low, high = np.searchsorted(rows, [begin, ends[groups[-1]]])
            found.append(
                _Piece(file["path"], groups.tolist(), rows[low:high] - begin, changes[low:high], none)
            )
        return found

    def _write(self, piece: _Piece) -> lake.AddedFile | None:
        source = self._source
        part = lake.Part(self._path, source.schema)
        if piece.file:
            begin = 0
            for batch in self._batches(self._open(piece.file), piece.groups, source.schema.names):
                low, high = np.searchsorted(piece.rows, [begin, begin + batch.num_rows])
                here, changes = piece.rows[low:high] - begin, piece.changes[low:high]
                part.write(self._changed(batch, here, changes))
                begin += batch.num_rows
        if len(piece.added):
            part.write(source.images(piece.added))
        return part.close()

    def _changed(self, batch: pa.RecordBatch, here: Places, changes: Places) -> pa.Table:
        """A batch without the rows `here` and with what their changes make of them."""
        stays = np.ones(batch.num_rows, np.bool_)
        stays[here] = False
        kept = pa.Table.from_batches([batch.filter(pa.array(stays))])
        updates = ~self._source.deletes[changes]
        if not updates.any():
            return kept
        old = batch.take(pa.array(here[updates])) if self._source.partial else None
        return pa.concat_tables([kept, self._source.images(changes[updates], old)])


def merge(
    path: str,
    source: Source,
    app_id: str,
    upto: int,
    memory_bytes: int | None,
    info: dict[str, str],
    auditor: BatchAuditor | None = None,
    *,
    only_after: int | None = None,
    follows: int | None = None,
) -> Outcome:
    """Merges changes into a table, once: an outcome without counts when the table already has them.
    `only_after`: the version that they were made from; `follows`: the progress that they were chosen by (-1:
    none). With another one, ConcurrentCommitError."""
    for attempt in range(_ATTEMPTS):
        table = DeltaTable(path)
        reached = table.transaction_version(app_id)
        if reached is not None and reached >= upto:
            break
        if only_after is not None and table.version() != only_after:
            raise ConcurrentCommitError.at(path, only_after, table.version())
        if follows is not None and follows != (-1 if reached is None else reached):
            raise ConcurrentCommitError.moved(path, app_id, follows, reached)
        try:
            return Rewrite(table, path, source, memory_bytes, auditor).run(app_id, upto, info)
        except CommitFailedError:
            if attempt == _ATTEMPTS - 1:
                raise
    return Outcome(version=table.version(), plan="task_local")
