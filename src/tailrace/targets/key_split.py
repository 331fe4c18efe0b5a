"""Splits the changes of a large batch into shards, so that one task can merge each.

All that is decided is per key: the changes of a key are in one shard, and so are keys that changes of keys
link. Tasks read the files of a batch, hash the keys, and write the rows of each shard to files of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import OPER, SEQ, one
from ..engine.linked import linked
from ..model.change import BEFORE, TRUNCATE, UPDATE
from ..wire.row_hashes import hashes
from .change_batch import ChangeBatch, FilePart
from .scratch import ScratchFile, ScratchWriter

Ints = npt.NDArray[np.int64]
_PAIR = pa.schema([("old", pa.int64()), ("new", pa.int64())])
_HALF = pa.schema([(SEQ, pa.string()), (OPER, pa.string()), ("hash", pa.int64())])
_LINK = pa.schema([("key", pa.int64()), ("least", pa.int64())])
_HELD = 64 << 20
"""Bytes of rows that a task holds before it writes them."""


@dataclass(frozen=True)
class LinkTask:
    """Finds in files of a batch the updates that change their key. Returns files with the hashes of their old
    keys and new ones, and with the before images whose update is in another file.

    `alone`: such before images. With them, their updates are returned instead.
    """

    batch: ChangeBatch
    columns: pa.Schema
    by: tuple[str, ...]
    folder: str
    alone: tuple[ScratchFile, ...] = ()

    def __call__(self, file: FilePart) -> tuple[ScratchFile | None, ScratchFile | None]:
        wanted = pa.schema([self.columns.field(n) for n in (SEQ, OPER, *self.by)])
        found, known = [_HALF.empty_table()], [one.read([SEQ]) for one in self.alone]
        for batch in self.batch.read_files(wanted, [file]):
            mine = batch.filter(pc.is_in(batch[OPER], value_set=pa.array([BEFORE, UPDATE])))
            if known:
                seqs = pa.concat_tables(known)[SEQ].combine_chunks()
                mine = mine.filter(pc.and_(pc.equal(mine[OPER], UPDATE), pc.is_in(mine[SEQ], value_set=seqs)))
            words = hashes([mine[n] for n in self.by]).view(np.int64)
            found.append(pa.table([mine[SEQ], mine[OPER], pa.array(words)], schema=_HALF))
        images = pa.concat_tables(found)
        if known:
            return None, _kept(self.folder, images)
        pairs, alone = paired(images)
        return _kept(self.folder, pairs), _kept(self.folder, alone)


def paired(images: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Of before images and updates (`SEQ`, `OPER`, `hash`) those of one change as pairs of different hashes,
    and the before images that are alone."""
    rows = images.combine_chunks()
    if not rows.num_rows:
        return _PAIR.empty_table(), _HALF.empty_table()
    rows = rows.take(pc.sort_indices(rows, [(SEQ, "ascending"), (OPER, "ascending")]))
    seq = one(rows[SEQ])
    change = np.concatenate([[0], np.cumsum(pc.not_equal(seq[1:], seq[:-1]).to_numpy(zero_copy_only=False))])
    before = pc.equal(one(rows[OPER]), BEFORE).to_numpy(zero_copy_only=False)
    words = one(rows["hash"]).to_numpy()
    at = np.full((2, int(change[-1]) + 1), -1, np.int64)
    for side, mine in enumerate((before, ~before)):
        at[side, change[mine]] = np.flatnonzero(mine)
    whole = np.asarray((at >= 0).all(axis=0))
    old, new = words[at[0, whole]], words[at[1, whole]]
    moved = old != new
    alone = pa.array(before & ~whole[change])
    return pa.table([old[moved], new[moved]], schema=_PAIR), rows.filter(alone)


def links(files: Sequence[tuple[ScratchFile | None, ScratchFile | None]], folder: str) -> ScratchFile | None:
    """A file of the hashes of linked keys, and for each the least that it is linked to; None: no key changes.
    `files`: what `LinkTask` returns, with `alone` and without."""
    pairs = [one.read() for one, _ in files if one is not None]
    images = [one.read() for _, one in files if one is not None]
    more, _ = paired(pa.concat_tables([_HALF.empty_table(), *images]))
    both = pa.concat_tables([_PAIR.empty_table(), *pairs, more])
    if not both.num_rows:
        return None
    keys, least = linked(one(both["old"]).to_numpy(), one(both["new"]).to_numpy())
    return _kept(folder, pa.table([keys, least], schema=_LINK))


@dataclass(frozen=True)
class Split:
    """Rows of a batch by shard, and the `change_seq` of the truncates among them."""

    files: tuple[tuple[int, ScratchFile], ...]
    truncates: tuple[str, ...]


@dataclass(frozen=True)
class SplitTask:
    """Splits the rows of a part of a located batch.

    Attributes:
        batch: the batch.
        columns: those that a merge wants.
        by: the columns by which rows belong together.
        shards: how many there are.
        folder: where the files of shards go.
        links: what `links` gives.
    """

    batch: ChangeBatch
    columns: pa.Schema
    by: tuple[str, ...]
    shards: int
    folder: str
    links: ScratchFile | None = None

    def __call__(self, file: FilePart) -> Split:
        writers = [ScratchWriter(self.folder, self.columns) for _ in range(self.shards)]
        truncates: list[str] = []
        for batch in self.batch.read_files(self.columns, [file]):
            shard, truncate = self._shard(batch), pc.equal(batch[OPER], TRUNCATE)
            truncates += batch[SEQ].filter(truncate).to_pylist()
            order = np.argsort(shard, kind="stable")
            rows, ends = (
                pa.Table.from_batches([batch.take(pa.array(order))]),
                np.bincount(shard, minlength=self.shards).cumsum().tolist(),
            )
            for begin, end, writer in zip([0, *ends[:-1]], ends, writers, strict=True):
                writer.write(rows.slice(begin, end - begin))
            if sum(writer.held for writer in writers) > _HELD:
                for writer in writers:
                    writer.flush()
        closed = [(n, writer.close()) for n, writer in enumerate(writers)]
        return Split(tuple((n, made) for n, made in closed if made is not None), tuple(truncates))

    def _shard(self, batch: pa.RecordBatch) -> Ints:
        words = hashes([batch[n] for n in self.by])
        if self._links is not None:
            keys, least = self._links
            own = words.view(np.int64)
            at = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
            words = np.where(keys[at] == own, least[at], own).view(np.uint64)
        # Truncates have no key; what they say is in the first shard.
        mine = pc.equal(batch[OPER], TRUNCATE).to_numpy(zero_copy_only=False)
        return np.where(mine, 0, (words % np.uint64(self.shards)).astype(np.int64))

    @cached_property
    def _links(self) -> tuple[Ints, Ints] | None:
        if self.links is None:
            return None
        found = self.links.read()
        return one(found["key"]).to_numpy(), one(found["least"]).to_numpy()


def _kept(folder: str, rows: pa.Table) -> ScratchFile | None:
    writer = ScratchWriter(folder, rows.schema)
    writer.write(rows)
    return writer.close()
