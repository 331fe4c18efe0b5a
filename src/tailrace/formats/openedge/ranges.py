"""Tracking rows and images of Parquet files joined by ranges of their change sequence, in Arrow.

Extracts lie in files in about the order of their changes. Then each task reads the row groups of one range
of numbers, of both tables, and joins them in memory: nothing is shuffled or sorted by Spark. Footers tell
whether that holds; if not, or if values need more than to be read, Spark joins the tables (`images`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import UnsupportedError
from ...model.types import arrow_type, spark_type
from ..base import VendorTable
from ..shape import find_columns
from .shares import Share
from .split import POSITION
from .tables import OTHER_OPERATIONS

SEQUENCE = "_Change-Sequence"
PLACE, NUMBER = ":file", ":row"
"""Columns of either side: which of its files a row comes from, and its number there, from 1."""
MOST_BYTES = 512 << 20
"""A task reads at most so much, as it is encoded in the files."""
LEAST_BYTES = 16 << 20
MOST_AGAIN = 2.0
"""Row groups overlap if tasks would read this many times what there is."""
SLICE = 1 << 16
_EVERY = (-(1 << 63), (1 << 63) - 1)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JoinSide:
    """One of the two tables: its files, and for each of its columns (wanted name) what it is called there,
    and its Spark type."""

    files: tuple[str, ...]
    columns: tuple[tuple[str, str | None, str], ...]

    def read(self, groups: Sequence[tuple[int, int]], low: int, high: int) -> pa.Table:
        """The rows of row groups (file, group) with numbers in a range, with `PLACE` and `NUMBER`."""
        there = [have for _, have, _ in self.columns if have is not None]
        parts = [pa.schema(self._fields()).empty_table()]
        for file, group in groups:
            with pq.ParquetFile(self.files[file]) as parquet:
                first = sum(parquet.metadata.row_group(g).num_rows for g in range(group))
                rows = parquet.read_row_group(group, columns=there)
            n = rows.num_rows
            number = pa.array(np.arange(first + 1, first + 1 + n))
            arrays = [pa.nulls(n, arrow_type(k)) if h is None else rows[h] for _, h, k in self.columns]
            made = pa.table([*arrays, pa.array(np.full(n, file, np.int32)), number], names=self.names())
            seq = made[SEQUENCE].to_numpy()
            if seq.min(initial=low) < low or seq.max(initial=high) > high:
                made = made.filter(pa.array((seq >= low) & (seq <= high)))
            schema = parts[0].schema
            parts.append(made if made.schema == schema else made.cast(schema))
        return pa.concat_tables(parts).combine_chunks()

    def names(self) -> list[str]:
        """Names of all columns."""
        return [*(want for want, _, _ in self.columns), PLACE, NUMBER]

    def kinds(self) -> list[str]:
        """Their Spark types."""
        return [*(kind for _, _, kind in self.columns), "int", "bigint"]

    def _fields(self) -> list[pa.Field]:
        return [pa.field(n, arrow_type(k)) for n, k in zip(self.names(), self.kinds(), strict=True)]


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, and the row groups (file, group) of each side that may have some."""

    low: int
    high: int
    tracking: tuple[tuple[int, int], ...]
    images: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RangeJoin:
    """Joins both sides, range by range: every tracking row with every image of its number, and each without
    the other that has none. Columns `_t:…` and `_c:…`, and `_t::there`, `_c::there`."""

    tracking: JoinSide
    images: JoinSide
    share: Share
    ranges: tuple[Range, ...]

    def columns(self) -> dict[str, str]:
        """The columns with their Spark types."""
        made: dict[str, str] = {}
        for side, of in (("_t", self.tracking), ("_c", self.images)):
            made |= {f"{side}:{n}": k for n, k in zip(of.names(), of.kinds(), strict=True)}
            made[f"{side}::there"] = "boolean"
        return made

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges whose numbers come, under plain names (`c0`, `c1`, ...)."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._joined(self.ranges[number])

    def _joined(self, one: Range) -> Iterator[pa.RecordBatch]:
        left = self.share.rows(self.tracking.read(one.tracking, one.low, one.high))
        codes = pa.array(list(OTHER_OPERATIONS), pa.int32())  # they change no row
        left = left.filter(pc.invert(pc.fill_null(pc.is_in(left["_Operation"], codes), False)))
        right = self.images.read(one.images, one.low, one.high)
        pairs = matched(left[SEQUENCE].to_numpy(), right[SEQUENCE].to_numpy())
        for start in range(0, len(pairs[0]), SLICE):
            arrays: list[pa.Array] = []
            for rows, at in zip((left, right), pairs, strict=True):
                some = at[start : start + SLICE]
                taken = rows.take(pa.array(some, mask=some < 0)).combine_chunks()
                there = pa.array(np.ones(len(some), np.bool_), mask=some < 0)
                arrays += [*(c.combine_chunks() for c in taken.columns), there]
            yield pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


def matched(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """The places of rows with equal numbers, pair by pair; -1: there is none on that side.

    >>> [a.tolist() for a in matched(np.array([7, 5, 9]), np.array([5, 5, 8, 7]))]
    [[1, 1, -1, 0, 2], [0, 1, 2, 3, -1]]
    """
    order = np.argsort(left, kind="stable")
    ordered = left[order]
    first, behind = np.searchsorted(ordered, right), np.searchsorted(ordered, right, "right")
    many = behind - first
    times = np.maximum(many, 1)
    place = np.repeat(np.arange(len(right)), times)
    step = np.arange(len(place)) - np.repeat(np.cumsum(times) - times, times)
    found = np.full(len(place), -1, np.int64)
    some = many[place] > 0
    found[some] = order[(first[place] + step)[some]]
    alone = np.ones(len(left), np.bool_)
    alone[found[some]] = False
    lone = np.flatnonzero(alone)
    return np.concatenate([found, lone]), np.concatenate([place, np.full(len(lone), -1, np.int64)])


@dataclass(frozen=True)
class _Group:
    file: int
    group: int
    low: int
    high: int
    size: int


def side_of(
    files: Sequence[Path], table: VendorTable, kinds: Mapping[str, str], more: Sequence[str] = ()
) -> tuple[JoinSide, list[_Group]] | None:
    """A table's side and its row groups; None if its files are not for `RangeJoin`.

    Args:
        files: its Parquet files.
        table: its declared columns, which must have their declared types (smaller integers go, too).
        kinds: the columns that Spark finds in the files, with their types.
        more: its other columns, as they are called in the files.
    """
    found = find_columns(list(kinds), table, where=table.name)
    columns = [(c.name, found.get(c.name), c.type) for c in table.columns]
    columns += [(name, name, kinds[name]) for name in more]
    groups: list[_Group] = []
    for at, file in enumerate(files):
        with pq.ParquetFile(file) as parquet:
            there = {f.name: f.type for f in parquet.schema_arrow}
            if not all(_fits(there.get(have), kind) for _, have, kind in columns if have is not None):
                return None
            mine = _groups(at, parquet.metadata, found)
        if mine is None:
            return None
        groups += mine
    return JoinSide(tuple(str(f.absolute()) for f in files), tuple(columns)), groups


_WIDTHS = ("tinyint", "smallint", "int", "bigint")


def _fits(kind: pa.DataType | None, wanted: str) -> bool:
    if kind is None:
        return False
    try:
        have = spark_type(kind)
    except UnsupportedError:
        return False
    if have in _WIDTHS and wanted in _WIDTHS:
        return _WIDTHS.index(have) <= _WIDTHS.index(wanted)
    return have == wanted


def _groups(file: int, footer: pq.FileMetaData, found: Mapping[str, str]) -> list[_Group] | None:
    """The row groups of a file with the range of their numbers; None if a number is unknown, or a record
    split."""
    names = [footer.schema.column(i).path for i in range(footer.num_columns)]
    seq = names.index(found[SEQUENCE])
    position = names.index(found[POSITION]) if POSITION in found else None
    made = []
    for n in range(footer.num_row_groups):
        group = footer.row_group(n)
        if not group.num_rows:
            continue
        span = group.column(seq).statistics
        if span is None or not span.has_min_max or span.null_count is None or span.null_count:
            return None
        if position is not None:
            halves = group.column(position).statistics
            if halves is None or (halves.has_min_max and (halves.min, halves.max) != (0, 0)):
                return None
        made.append(_Group(file, n, span.min, span.max, group.total_byte_size))
    return made


def ranges(tracking: Sequence[_Group], images: Sequence[_Group]) -> tuple[Range, ...] | None:
    """Ranges of numbers, each for a task; None if tasks would read too much, or the same too often.

    >>> one, two = _Group(0, 0, 1, 10, LEAST_BYTES), _Group(0, 1, 10, 20, LEAST_BYTES)
    >>> [(r.images, r.tracking) for r in ranges([_Group(0, 0, 1, 20, 99)], [two, one])]
    [(((0, 0),), ((0, 0),)), (((0, 1), (0, 0)), ((0, 0),))]
    >>> ranges([], [_Group(n, 0, 1, 20, MOST_BYTES // 3) for n in range(4)]) is None
    True
    """
    cuts, size = [_EVERY[0]], 0
    for one in sorted(images or tracking, key=lambda g: g.low):
        if size >= LEAST_BYTES and one.low > cuts[-1]:
            cuts.append(one.low)
            size = 0
        size += one.size
    made, read = [], 0
    for low, high in zip(cuts, [*(c - 1 for c in cuts[1:]), _EVERY[1]], strict=True):
        some = [[g for g in side if g.low <= high and g.high >= low] for side in (tracking, images)]
        bytes_ = sum(g.size for side in some for g in side)
        if bytes_ > MOST_BYTES:
            return None
        read += bytes_
        made.append(Range(low, high, *(tuple((g.file, g.group) for g in side) for side in some)))
    there = sum(g.size for g in (*tracking, *images))
    return tuple(made) if read <= MOST_AGAIN * there else None


__all__ = ["NUMBER", "PLACE", "JoinSide", "Range", "RangeJoin", "matched", "ranges", "side_of"]
