"""Tasks of a comparison. Each reads one piece of a side's files and returns little data.

Results are sums per bucket of keys, the path of a file with row hashes, or a few rows. Rows are compared by
their hashes (`wire.row_hashes`). Hashes of rows that may differ are written to files in the scratch folder,
which the tasks for groups of keys read. So memory does not grow with the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import TailraceError, room
from ..lake.storage import filesystem, make_folder
from ..wire.row_hashes import Words, hashes, kind_of, slices
from .file_rows import FileRows

Numbers = npt.NDArray[np.int64]
HASH = "hash"
COPIES = "header__copies"
"""Surplus of copies of a row in the source; negative if the target has more."""
_KEY_HASH = "key"
_HASHES = pa.schema([(_KEY_HASH, pa.uint64()), (HASH, pa.int64())])
_SURPLUS = pa.schema([*_HASHES, (COPIES, pa.int64())])


@dataclass(frozen=True)
class Shape:
    """Columns and buckets of a comparison.

    Attributes:
        schema: the columns and their common types.
        key: the indexes of the key columns; of all columns if there is no key.
        buckets: the number of buckets of keys.
    """

    schema: pa.Schema
    key: tuple[int, ...]
    buckets: int

    def hashed(self, rows: FileRows) -> Iterator[tuple[Words, Numbers, pa.RecordBatch]]:
        """Yields the hashes of keys and rows, and the rows in the schema's types."""
        whole = self.key == tuple(range(len(self.schema)))
        for batch in rows.batches(self.schema.names):
            arrays = [a.cast(f.type) for a, f in zip(batch.columns, self.schema, strict=True)]
            for some in slices(pa.record_batch(arrays, schema=self.schema)):
                own = hashes(some.columns)
                keys = own if whole else hashes([some.columns[k] for k in self.key])
                yield keys, own.view(np.int64), some

    def bucket(self, keys: Words) -> Numbers:
        """Returns the bucket of each key."""
        return np.asarray(keys % np.uint64(self.buckets), np.int64)

    def group(self, keys: Words, groups: int) -> Numbers:
        """Returns the group of each key, which does not depend on its bucket."""
        return np.asarray(keys // np.uint64(self.buckets) % np.uint64(groups), np.int64)


def shape_of(left: pa.Schema, right: pa.Schema, key: Sequence[str], buckets: int) -> tuple[Shape, list[str]]:
    """Returns the shape for comparing two sides, and messages about columns that cannot be compared."""
    words = []
    for one, other, side in ((left, right, "source"), (right, left, "target")):
        if only := [n for n in one.names if n not in other.names]:
            words.append(f"only in the {side}: {', '.join(only)}")
    fields = []
    for name in (n for n in left.names if n in right.names):
        types = left.field(name).type, right.field(name).type
        if (kind := kind_of(*types)) is None:
            words.append(f"{name} is {types[0]} in the source and {types[1]} in the target")
        else:
            fields.append(pa.field(name, kind))
    schema = pa.schema(fields)
    indexes = [schema.names.index(k) for k in key if k in schema.names] or range(len(schema))
    return Shape(schema, tuple(indexes), buckets), words


@dataclass(frozen=True)
class Piece:
    """A piece of one side's files (side 0: source, 1: target), its bytes, and the shape of the comparison."""

    side: int
    rows: FileRows
    size: int
    shape: Shape


@dataclass
class BucketSums:
    """The number of rows and the sum of their hashes per bucket, and the bytes of all rows in memory."""

    rows: Numbers
    sums: Words
    bytes: int = 0

    @staticmethod
    def none(buckets: int) -> BucketSums:
        """Returns the sums of zero rows."""
        return BucketSums(np.zeros(buckets, np.int64), np.zeros(buckets, np.uint64))

    def add(self, more: BucketSums) -> None:
        """Adds the sums of other rows."""
        self.rows += more.rows
        self.sums += more.sums
        self.bytes += more.bytes

    def differing(self, other: BucketSums) -> Numbers:
        """Returns the buckets that differ."""
        return np.flatnonzero((self.rows != other.rows) | (self.sums != other.sums))


def sum_buckets(piece: Piece) -> BucketSums | TailraceError:
    """Task: returns the sums of a piece, or the error if its values cannot be compared."""
    found = BucketSums.none(piece.shape.buckets)
    try:
        for keys, own, rows in piece.shape.hashed(piece.rows):
            buckets = piece.shape.bucket(keys)
            found.rows += np.bincount(buckets, minlength=piece.shape.buckets)
            np.add.at(found.sums, buckets, own.view(np.uint64))
            found.bytes += rows.nbytes
    except TailraceError as error:
        return error
    return found


@dataclass(frozen=True)
class WriteHashes:
    """Task: writes the hashes of a piece's rows in some buckets to a file in `folder`, one record batch per
    group.

    Returns the file's path, or None if there are no such rows.
    """

    folder: str
    buckets: Numbers
    groups: int

    def __call__(self, piece: Piece) -> str | None:
        keys, own = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for some, mine, _ in piece.shape.hashed(piece.rows):
            near = np.isin(piece.shape.bucket(some), self.buckets)
            keys.append(some[near])
            own.append(mine[near])
        every, hashed = np.concatenate(keys), np.concatenate(own)
        if not len(every):
            return None
        groups = piece.shape.group(every, self.groups)
        order = np.argsort(groups, kind="stable")
        ends = np.searchsorted(groups[order], np.arange(self.groups + 1))
        found = ([every[order[a:b]], hashed[order[a:b]]] for a, b in pairwise(ends))
        return _write(self.folder, _HASHES, found)


@dataclass(frozen=True)
class Surplus:
    """Rows of a group on one side only: their number with copies, the number of distinct ones, and a file of
    their hashes.

    `file` is None if there are no such rows.
    """

    count: int
    different: int
    file: str | None


@dataclass(frozen=True)
class MatchHashes:
    """Task: matches the hashes of both sides of a group; `files` are those of each side."""

    folder: str
    files: tuple[tuple[str, ...], tuple[str, ...]]

    def __call__(self, group: int) -> Surplus:
        (left_keys, left), (right_keys, right) = (_read(files, group) for files in self.files)
        known, first, which = np.unique(np.concatenate([left, right]), return_index=True, return_inverse=True)
        copies = np.bincount(which[: len(left)], minlength=len(known)).astype(np.int64)
        copies -= np.bincount(which[len(left) :], minlength=len(known))
        apart = copies != 0
        if not apart.any():
            return Surplus(0, 0, None)
        keys = np.concatenate([left_keys, right_keys])[first[apart]]
        file = _write(self.folder, _SURPLUS, [[keys, known[apart], copies[apart]]])
        return Surplus(int(np.abs(copies).sum()), int(apart.sum()), file)


@dataclass(frozen=True)
class FirstRows:
    """Task: returns at most `most` of the rows listed in `files` (of `MatchHashes`), the first by key.

    The columns are `HASH`, `COPIES`, then c0, c1, ...
    """

    files: tuple[str, ...]
    most: int

    def __call__(self, piece: Piece) -> pa.Table:
        surplus = pa.concat_tables([_table(file) for file in self.files]).sort_by(HASH)
        known, copies = surplus[HASH].to_numpy(), surplus[COPIES].to_numpy()
        found = empty_rows(piece.shape, copies=True)
        for _, own, rows in piece.shape.hashed(piece.rows):
            at = np.minimum(np.searchsorted(known, own), len(known) - 1)
            mine = np.flatnonzero(known[at] == own)
            if len(mine):
                columns = [
                    pa.array(own[mine]),
                    pa.array(copies[at[mine]]),
                    *rows.take(pa.array(mine)).columns,
                ]
                more = pa.table(columns, schema=found.schema)
                found = first_rows([found, more], piece.shape, self.most)
        return found


def first_rows(tables: Sequence[pa.Table], shape: Shape, most: int) -> pa.Table:
    """Returns the first rows by key, each hash once."""
    rows = pa.concat_tables(tables)
    _, indexes = np.unique(rows[HASH].to_numpy(), return_index=True)
    order = [*shape.key, *range(len(shape.schema))]
    # Arrow cannot sort by arrays.
    key = [(f"c{k}", "ascending") for k in order if not pa.types.is_nested(shape.schema.field(k).type)]
    return rows.take(pa.array(np.sort(indexes))).sort_by([*key, (HASH, "ascending")]).slice(0, most)


@dataclass(frozen=True)
class RowsOfKeys:
    """Task: returns all rows with the keys listed in a file of `MatchHashes`: `HASH`, then the columns as c0,
    c1, ..."""

    file: str

    def __call__(self, piece: Piece) -> pa.Table:
        keys = np.unique(_table(self.file)[_KEY_HASH].to_numpy())
        schema = empty_rows(piece.shape).schema
        found = []
        for some, own, rows in piece.shape.hashed(piece.rows):
            mine = pa.array(np.flatnonzero(np.isin(some, keys)))
            if len(mine):
                found.append(pa.table([pa.array(own).take(mine), *rows.take(mine).columns], schema=schema))
        return pa.concat_tables(found) if found else schema.empty_table()


def empty_rows(shape: Shape, *, copies: bool = False) -> pa.Table:
    """Returns an empty table with the columns that the tasks return."""
    own = [(HASH, pa.int64()), *([(COPIES, pa.int64())] if copies else [])]
    return pa.schema([*own, *((f"c{i}", f.type) for i, f in enumerate(shape.schema))]).empty_table()


def _write(folder: str, schema: pa.Schema, batches: Iterable[Sequence[npt.NDArray[Any]]]) -> str:
    """Writes record batches to a new file, because a task may run twice."""
    fs, path = filesystem(folder)
    name = f"{uuid.uuid4().hex}.arrow"
    with room(folder):
        make_folder(folder)
        with fs.open_output_stream(f"{path}/{name}") as out, pa.ipc.new_file(out, schema) as writer:
            for columns in batches:
                writer.write_batch(pa.record_batch([pa.array(one) for one in columns], schema=schema))
    return f"{folder}/{name}"


def _read(files: Sequence[str], group: int) -> tuple[Words, Numbers]:
    """Returns the hashes of a group from some files."""
    keys, own = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for file in files:
        fs, path = filesystem(file)
        with fs.open_input_file(path) as opened:
            batch = pa.ipc.open_file(opened).get_batch(group)
        keys.append(batch[_KEY_HASH].to_numpy())
        own.append(batch[HASH].to_numpy())
    return np.concatenate(keys), np.concatenate(own)


def _table(file: str) -> pa.Table:
    fs, path = filesystem(file)
    with fs.open_input_file(path) as opened:
        return pa.ipc.open_file(opened).read_all()
