"""Merge by rewriting: files that hold a changed key are written anew, all others stay as they are.

*Find*: of files whose range of keys the changes may meet, the key columns alone are read; rows are matched to
changes by hash. *Write*: such a file is streamed to a new part, without the rows that change, each batch with
its rows' new images behind it, so that files keep their ranges of keys. *Commit*: files out, parts in and the
progress in one commit on exactly the version that was read; if anybody wrote meanwhile, all is done again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ....config.machine import cores
from ....engine.keys import Places, nth
from ....engine.source import Source
from ....errors import ConcurrentCommitError
from ....execution import thread_pool
from ....lake import delta as lake
from ....lake import guards, written
from ....lake.failpoints import reach
from ..outcome import ApplyOutcome
from .files import BATCH, NONE, SMALL, TargetFiles, TargetPiece, beside, edges
from .size import actions

if TYPE_CHECKING:
    from ..auditor import BatchAuditor

_ATTEMPTS = 5


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
        self._table, self._auditor = table, auditor
        self._lanes = cores()
        # The changes may take half of the memory; a batch being copied is there about three times.
        share = BATCH if memory_bytes is None else memory_bytes // 2 // self._lanes // 3
        more = beside(lake.arrow_schema(table), source.schema.names)
        self._files = TargetFiles(path, source, min(BATCH, share), more)

    def run(
        self, app_id: str, upto: int, info: dict[str, str], most: int | None = None
    ) -> ApplyOutcome | None:
        """Merges and commits; None, and nothing is written, when that would write more than `most` bytes of
        files anew."""
        every = actions(self._table).to_pylist()
        blind = self._auditor is not None and self._auditor.blind
        files = [f for f in every if not blind and self._files.may_touch(*edges(f, self._source.known_by[0]))]
        size = self._source.rows.nbytes + sum(f["size_bytes"] for f in files)
        with thread_pool("rewrite", worth=size >= SMALL) as pool:
            touched = list(pool.map(lambda f: self._files.find(f["path"]), files))
            met = [(rows, keys) for rows, keys, _ in touched]
            if most is not None and self._bytes(files, met) > most:
                return None
            upto = self._decided(files, met, [keys for _, _, keys in touched], upto)
            empties = self._auditor is not None and self._auditor.empties
            # What a truncate takes away is met by no change that remains.
            found = [] if empties else self._counting(met)
            files = [] if empties else files
            pieces = self._plan(files, found)
            added = sum(len(piece.added) for piece in pieces)
            writing = pool.map(self._files.write, pieces)
            if self._auditor is not None:
                self._auditor.log(pool)
                self._auditor.finish()
            parts = [part for part in writing if part]
        if upto < 0:
            return ApplyOutcome(version=self._table.version(), plan="task_local")
        gone = every if empties else [f for f, (rows, _) in zip(files, found, strict=True) if len(rows)]
        exchange(self._table, gone, parts, app_id, upto, info)
        reach("delta.merged")
        changes = np.concatenate([NONE, *[c for _, c in found]])
        deleted = int(self._source.deletes[changes].sum())
        updated = len(changes) - deleted
        deleted += sum(f["num_records"] or 0 for f in every) if empties else 0
        return ApplyOutcome(added, updated, deleted, self._table.version() + 1, "task_local")

    def _bytes(self, files: list[dict[str, Any]], met: list[tuple[Places, Places]]) -> int:
        """How many bytes of files would be written anew, if all changes counted; none after a truncate."""
        if self._auditor is not None and self._auditor.truncated:
            return 0
        return sum(int(f["size_bytes"]) for f, (rows, _) in zip(files, met, strict=True) if len(rows))

    def _decided(
        self,
        files: list[dict[str, Any]],
        met: list[tuple[Places, Places]],
        living: list[Places],
        upto: int,
    ) -> int:
        """Lets the auditor say what counts, and which change number is reached by it."""
        if self._auditor is None:
            return upto
        there = np.bincount(np.concatenate([NONE, *living]), minlength=len(self._source.last))

        def rows_of(wanted: Places) -> tuple[Places, pa.Table]:
            found = [self._rows_of(f["path"], *one, wanted) for f, one in zip(files, met, strict=True)]
            none = pa.Table.from_batches([], self._source.schema)
            keys = np.concatenate([NONE, *[k for k, _ in found]])
            return keys, pa.concat_tables([none, *[t for _, t in found]])

        source = self._auditor.decide(self._source, there, rows_of)
        self._files = replace(self._files, source=source)
        return self._auditor.upto

    def _rows_of(self, name: str, rows: Places, keys: Places, wanted: Places) -> tuple[Places, pa.Table]:
        """Of a file's rows whose keys changes have, those with wanted keys."""
        mine = np.isin(keys, wanted)
        return keys[mine], self._files.rows_of(name, rows[mine])

    def _counting(self, met: list[tuple[Places, Places]]) -> list[tuple[Places, Places]]:
        """Of the files' rows whose keys changes have, those with a change that counts, and these changes;
        without key the first copies, as many as go."""
        last, net = self._source.last, self._source.net
        if net is None:
            counts = [last[keys] >= 0 for _, keys in met]
        else:
            every = np.concatenate([NONE, *[keys for _, keys in met]])
            ends = np.cumsum([0, *[len(keys) for _, keys in met]])
            gone = nth(every) < -net[every]
            counts = [gone[a:b] for a, b in pairwise(ends)]
        return [(rows[c], last[keys[c]]) for (rows, keys), c in zip(met, counts, strict=True)]

    @property
    def _source(self) -> Source:
        return self._files.source

    def _plan(self, files: list[dict[str, Any]], found: list[tuple[Places, Places]]) -> list[TargetPiece]:
        """The pieces to write.

        Rows that are new go to the end of the file with the greatest keys, as far as files are written;
        many of them, or all when no file is, are a part of their own.
        """
        source = self._source
        met = np.zeros(source.rows.num_rows, np.bool_)
        pieces: list[TargetPiece] = []
        last, greatest = -1, None
        for file, (rows, changes) in zip(files, found, strict=True):
            if not len(rows):
                continue
            met[changes] = True
            pieces += self._files.pieces(file["path"], file["size_bytes"], rows, changes)
            high = edges(file, source.known_by[0])[1]
            if greatest is None or (high is not None and high >= greatest):
                last, greatest = len(pieces) - 1, high
        if source.net is None:
            counts = source.last[source.last >= 0]
            new = counts[~(met | source.deletes)[counts]]
        else:
            new = np.repeat(source.last, np.maximum(source.net, 0))
        own = last < 0 or source.rows.nbytes * len(new) // max(1, len(met)) > lake.SMALL_FILE
        if len(new) and own:
            pieces.append(TargetPiece("", [], NONE, NONE, new))
        elif len(new):
            pieces[last] = replace(pieces[last], added=new)
        return pieces


def exchange(
    table: DeltaTable,
    gone: list[dict[str, Any]],
    parts: list[lake.AddedFile],
    app_id: str,
    upto: int,
    info: dict[str, str],
) -> None:
    """Commits on exactly the version that is open: files out (add actions, flattened), parts in, progress.

    Raises:
        CommitFailedError: somebody else committed since.
    """
    now = int(time.time() * 1000)
    reach("delta.local")
    guards.check()
    table.create_write_transaction(
        [
            *[RemoveAction(f["path"], True, now, f["size_bytes"], {}) for f in gone],
            *[AddAction(p.path, p.size, {}, p.modified, True, p.stats) for p in parts],
        ],
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(
            custom_metadata=info, app_transactions=[Transaction(app_id, upto)], max_commit_retries=0
        ),
        post_commithook_properties=lake.after_commit(table),
    )
    written.add(table.table_uri, [p.size for p in parts])


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
    table: DeltaTable | None = None,
    most: int | None = None,
) -> ApplyOutcome | None:
    """Merges changes into a table (open as `table`, or not yet), once: an outcome without counts when the
    table already has them.
    `only_after`: the version that they were made from; `follows`: the progress that they were chosen by (-1:
    none). With another one, ConcurrentCommitError. `most`: when changes touch files of more bytes, nothing is
    written: None."""
    known = None if table is None else follows  # whoever has it open chose the changes by its progress
    table = DeltaTable(path) if table is None else table
    for attempt in range(_ATTEMPTS):
        reached = lake.reached(table, app_id) if known is None or attempt else known
        if reached >= upto:
            break
        if only_after is not None and table.version() != only_after:
            raise ConcurrentCommitError.at(path, only_after, table.version())
        if follows is not None and follows != reached:
            raise ConcurrentCommitError.moved(path, app_id, follows, reached)
        try:
            return Rewrite(table, path, source, memory_bytes, auditor).run(app_id, upto, info, most)
        except CommitFailedError:
            if attempt == _ATTEMPTS - 1:
                raise
            table = DeltaTable(path)
    return ApplyOutcome(version=table.version(), plan="task_local")
