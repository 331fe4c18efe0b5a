"""Reads Parquet files that are roughly ordered by a number by ranges of it: each task reads one range.

Footers show the order, and whether the files have the wanted columns; otherwise Spark shuffles the rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import UnsupportedError
from ..model.types import arrow_type, spark_type
from .base import OWN
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

FILE_INDEX, NUMBER = OWN + "file_index", OWN + "at"
"""Columns added to rows: the index of the file, and the row's number in it, from 1."""
MOST_BYTES = 512 << 20
"""The maximum number of bytes that a task reads, as encoded in the files."""
LEAST_BYTES = 16 << 20
MOST_AGAIN = 2.0
"""Row groups overlap too much if tasks would read this many times the size of the files."""
_PATIENCE = 4
_EVERY = (-(1 << 63), (1 << 63) - 1)
_WIDTHS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file: the smallest and the greatest number in it, and its encoded size."""

    file: int
    group: int
    low: int
    high: int
    size: int


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, and for each table the row groups (file, group) that may have
    them."""

    low: int
    high: int
    groups: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class GroupReader:
    """Reads a table's row groups.

    Attributes:
        files: its files.
        columns: for each column its name, its name in the files (None: missing there), and its Spark type.
        number: the column of the ranges.
    """

    files: tuple[str, ...]
    columns: tuple[tuple[str, str | None, str], ...]
    number: str

    def read(self, groups: Sequence[tuple[int, int]], low: int, high: int) -> Iterator[pa.Table]:
        """Yields the rows with numbers in a range, row group by row group, with `FILE_INDEX` and `NUMBER`."""
        for file, mine in groupby(groups, key=lambda g: g[0]):
            with pq.ParquetFile(self.files[file]) as parquet:
                for _, group in mine:
                    rows = self._group(parquet, file, group)
                    numbers = rows[self.number].to_numpy()
                    if numbers.min(initial=low) < low or numbers.max(initial=high) > high:
                        rows = rows.filter(pa.array((numbers >= low) & (numbers <= high)))
                    yield rows

    def _group(self, parquet: pq.ParquetFile, file: int, group: int) -> pa.Table:
        schema = self.schema()
        first = sum(parquet.metadata.row_group(g).num_rows for g in range(group))
        rows = parquet.read_row_group(
            group, columns=[have for _, have, _ in self.columns if have is not None]
        )
        n = rows.num_rows
        arrays = [pa.nulls(n, arrow_type(k)) if h is None else rows[h] for _, h, k in self.columns]
        place, number = pa.array(np.full(n, file, np.int32)), pa.array(np.arange(first + 1, first + 1 + n))
        result = pa.table([*arrays, place, number], names=schema.names)
        return result if result.schema == schema else result.cast(schema)

    def kinds(self) -> dict[str, str]:
        """Returns the columns of the rows with their Spark types."""
        return {want: kind for want, _, kind in self.columns} | {FILE_INDEX: "int", NUMBER: "bigint"}

    def schema(self) -> pa.Schema:
        """Returns the rows' schema."""
        return pa.schema([(name, arrow_type(kind)) for name, kind in self.kinds().items()])

    def path(self, place: SparkColumn) -> SparkColumn:
        """Returns the file of a row, named as by Spark."""
        names = ["file:" + Path(f).as_uri().removeprefix("file://") for f in self.files]
        return F.get(F.array(*map(F.lit, names)), place)


def fits(parquet: pq.ParquetFile, columns: Sequence[tuple[str, str | None, str]]) -> bool:
    """Whether a file has these columns (as in `GroupReader`) in these types, or in smaller integers."""
    there = {f.name: f.type for f in parquet.schema_arrow}
    return all(_fits(there.get(have), kind) for _, have, kind in columns if have is not None)


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


def column_indexes(footer: pq.FileMetaData) -> Mapping[str, int]:
    """Returns the indexes of a file's columns in its footer."""
    return {footer.schema.column(i).path: i for i in range(footer.num_columns)}


def groups_of(file: int, footer: pq.FileMetaData, column: str) -> list[RowGroup] | None:
    """Returns the row groups of a file with the range of a column; None if a number is unknown."""
    at = column_indexes(footer)[column]
    result = []
    for n in range(footer.num_row_groups):
        group = footer.row_group(n)
        if not group.num_rows:
            continue
        span = group.column(at).statistics
        if span is None or not span.has_min_max or span.null_count is None or span.null_count:
            return None
        result.append(RowGroup(file, n, span.min, span.max, group.total_byte_size))
    return result


def ranges(tables: Sequence[Sequence[RowGroup]], *, least: int | None = None) -> tuple[Range, ...] | None:
    """Returns ranges of numbers, one per task; None if tasks would read too much, or the same too often.

    Args:
        tables: the row groups of each table; the first that has any determines the start of ranges.
        least: the minimum number of its bytes for a task (`LEAST_BYTES`).

    >>> one, two = RowGroup(0, 0, 1, 10, LEAST_BYTES), RowGroup(0, 1, 11, 20, LEAST_BYTES)
    >>> [r.groups for r in ranges([[RowGroup(0, 0, 1, 20, 99)], [two, one]])]
    [(((0, 0),), ((0, 1), (0, 0)))]
    >>> [r.groups for r in ranges([[two, one], [RowGroup(0, 0, 1, 20, 99)]])]
    [(((0, 0),), ((0, 0),)), (((0, 1),), ((0, 0),))]
    >>> ranges([[RowGroup(n, 0, 1, 20, MOST_BYTES // 3) for n in range(4)]]) is None
    True
    """
    cuts = _range_starts(next((groups for groups in tables if groups), ()), least or LEAST_BYTES)
    result, read = [], 0
    for low, high in zip(cuts, [*(c - 1 for c in cuts[1:]), _EVERY[1]], strict=True):
        some = [[g for g in groups if g.low <= high and g.high >= low] for groups in tables]
        bytes_ = sum(g.size for groups in some for g in groups)
        if bytes_ > MOST_BYTES:
            return None
        read += bytes_
        result.append(Range(low, high, tuple(tuple((g.file, g.group) for g in groups) for groups in some)))
    there = sum(g.size for groups in tables for g in groups)
    return tuple(result) if read <= MOST_AGAIN * there else None


def _range_starts(groups: Sequence[RowGroup], least: int) -> list[int]:
    """Returns the starts of ranges: after `least` bytes, or after up to `_PATIENCE` times that, until at most
    half of them would be read again."""
    ordered = sorted(groups, key=lambda g: g.low)
    highs = sorted((g.high, g.size) for g in groups)
    over = [0, *accumulate(size for _, size in highs)]
    cuts, begins, size, begun = [_EVERY[0]], min((g.low for g in groups), default=0), 0, 0
    for one in ordered:
        again = begun - over[bisect_left(highs, (one.low, 0))]
        if size >= max(least, min(2 * again, _PATIENCE * least)) and one.low > begins:
            cuts.append(one.low)
            begins, size = one.low, 0
        size += one.size
        begun += one.size
    return cuts


__all__ = [
    "FILE_INDEX",
    "LEAST_BYTES",
    "MOST_AGAIN",
    "MOST_BYTES",
    "NUMBER",
    "GroupReader",
    "Range",
    "RowGroup",
    "column_indexes",
    "fits",
    "groups_of",
    "ranges",
]  # fmt: skip
