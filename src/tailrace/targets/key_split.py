"""Splits the changes of a large batch into shards, so that one task can merge each.

Changes are decided per key. So all changes of a key are in one shard, and so are keys that are linked by an
update of the key. Tasks read the files of a batch, hash the keys, and write a file for each shard.
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
_MAX_IN_MEMORY = 64 << 20
"""Bytes of rows that a task collects before it writes them."""


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
            images = batch.filter(pc.is_in(batch[OPER], value_set=pa.array([BEFORE, UPDATE])))
            if known:
                seqs = pa.concat_tables(known)[SEQ].combine_chunks()
                wanted_seq = pc.is_in(images[SEQ], value_set=seqs)
                images = images.filter(pc.and_(pc.equal(images[OPER], UPDATE), wanted_seq))
            key_hashes = hashes([images[n] for n in self.by]).view(np.int64)
            found.append(pa.table([images[SEQ], images[OPER], pa.array(key_hashes)], schema=_HALF))
        table = pa.concat_tables(found)
        if known:
            return None, _write(self.folder, table)
        pairs, alone = paired(table)
        return _write(self.folder, pairs), _write(self.folder, alone)


def paired(images: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the pairs of different hashes of updates and their before images, and the before images without
    an update; `images`: `SEQ`, `OPER`, `hash`."""
    rows = images.combine_chunks()
    if not rows.num_rows:
        return _PAIR.empty_table(), _HALF.empty_table()
    rows = rows.take(pc.sort_indices(rows, [(SEQ, "ascending"), (OPER, "ascending")]))
    seq = one(rows[SEQ])
    change = np.concatenate([[0], np.cumsum(pc.not_equal(seq[1:], seq[:-1]).to_numpy(zero_copy_only=False))])
    before = pc.equal(one(rows[OPER]), BEFORE).to_numpy(zero_copy_only=False)
    key_hashes = one(rows["hash"]).to_numpy()
    at = np.full((2, int(change[-1]) + 1), -1, np.int64)
    for side, mask in enumerate((before, ~before)):
        at[side, change[mask]] = np.flatnonzero(mask)
    complete = np.asarray((at >= 0).all(axis=0))
    old, new = key_hashes[at[0, complete]], key_hashes[at[1, complete]]
    changed = old != new
    alone = pa.array(before & ~complete[change])
    return pa.table([old[changed], new[changed]], schema=_PAIR), rows.filter(alone)


def links(files: Sequence[tuple[ScratchFile | None, ScratchFile | None]], folder: str) -> ScratchFile | None:
    """Writes a file with the hashes of linked keys, and for each the smallest hash that it is linked to.
    Returns None if no key changes. `files`: the results of all `LinkTask`s, those with `alone` included."""
    pairs = [one.read() for one, _ in files if one is not None]
    images = [one.read() for _, one in files if one is not None]
    more, _ = paired(pa.concat_tables([_HALF.empty_table(), *images]))
    both = pa.concat_tables([_PAIR.empty_table(), *pairs, more])
    if not both.num_rows:
        return None
    keys, least = linked(one(both["old"]).to_numpy(), one(both["new"]).to_numpy())
    return _write(folder, pa.table([keys, least], schema=_LINK))


@dataclass(frozen=True)
class Split:
    """Files with the rows of each shard, and the `change_seq` of the truncates among them."""

    files: tuple[tuple[int, ScratchFile], ...]
    truncates: tuple[str, ...]


@dataclass(frozen=True)
class SplitTask:
    """Splits the rows of a part of a located batch.

    Attributes:
        batch: the batch.
        columns: the columns of the shards' files.
        by: the key columns; rows with the same values in them go to the same shard.
        shards: the number of shards.
        folder: the folder of the shards' files.
        links: the file that `links` writes.
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
            if sum(writer.unwritten for writer in writers) > _MAX_IN_MEMORY:
                for writer in writers:
                    writer.flush()
        closed = [(n, writer.close()) for n, writer in enumerate(writers)]
        return Split(tuple((n, file) for n, file in closed if file is not None), tuple(truncates))

    def _shard(self, batch: pa.RecordBatch) -> Ints:
        """Returns the shard of each row."""
        key_hashes = hashes([batch[n] for n in self.by])
        if self._links is not None:
            keys, least = self._links
            signed = key_hashes.view(np.int64)
            at = np.minimum(np.searchsorted(keys, signed), len(keys) - 1)
            key_hashes = np.where(keys[at] == signed, least[at], signed).view(np.uint64)
        # Truncates have no key; they go to the first shard.
        truncates = pc.equal(batch[OPER], TRUNCATE).to_numpy(zero_copy_only=False)
        return np.where(truncates, 0, (key_hashes % np.uint64(self.shards)).astype(np.int64))

    @cached_property
    def _links(self) -> tuple[Ints, Ints] | None:
        if self.links is None:
            return None
        found = self.links.read()
        return one(found["key"]).to_numpy(), one(found["least"]).to_numpy()


def _write(folder: str, rows: pa.Table) -> ScratchFile | None:
    writer = ScratchWriter(folder, rows.schema)
    writer.write(rows)
    return writer.close()
