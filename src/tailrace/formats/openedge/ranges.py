"""Joins tracking rows and images of Parquet files by ranges of their change sequence, in Arrow.

Files of extracts are roughly in the order of their changes. Then each task reads the row groups of one range
of numbers, of both tables, and joins them in memory; Spark neither shuffles nor sorts. Footers show whether
this is possible; if not, or if values need conversion, Spark joins the tables (`changes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...execution import over_rows
from ...model.quoting import quoted
from ..base import ADDED_COLUMNS, FILE, RAW, ROW, WHY, Tables, VendorTable
from ..parquet import LoadedTables
from ..row_groups import (
    FILE_INDEX,
    NUMBER,
    GroupReader,
    Range,
    RowGroup,
    column_indexes,
    fits,
    groups_of,
    ranges,
)
from ..shape import find_columns
from ..spark_functions import F
from .changes import THERE
from .policies import CapturedTable
from .shares import Share
from .split_records import POSITION, SPLIT
from .tables import CHANGE, OTHER_OPERATIONS, TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEQUENCE = "_Change-Sequence"
SLICE = 1 << 16
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RangeJoin:
    """Joins both sides, range by range: every tracking row with every image of its number, and rows without a
    partner alone. Columns are named `_t:…` and `_c:…`, including `THERE` of each."""

    tracking: GroupReader
    images: GroupReader
    share: Share
    ranges: tuple[Range, ...]

    def columns(self) -> dict[str, str]:
        """Returns the columns with their Spark types."""
        result: dict[str, str] = {}
        for side, of in (("_t", self.tracking), ("_c", self.images)):
            result |= {f"{side}:{name}": kind for name, kind in of.kinds().items()}
            result[f"{side}:{THERE}"] = "boolean"
        return result

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the ranges whose numbers are given, under plain names (`c0`, `c1`, ...)."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._joined(self.ranges[number])

    def _joined(self, one: Range) -> Iterator[pa.RecordBatch]:
        images, tracking = (
            pa.concat_tables(
                [of.schema().empty_table(), *of.read(groups, one.low, one.high)]
            ).combine_chunks()
            for of, groups in zip((self.images, self.tracking), one.groups, strict=True)
        )
        left = self.share.rows(tracking)
        codes = pa.array(list(OTHER_OPERATIONS), pa.int32())  # they change no row
        left = left.filter(pc.invert(pc.fill_null(pc.is_in(left["_Operation"], codes), False)))
        pairs = matched(left[SEQUENCE].to_numpy(), images[SEQUENCE].to_numpy())
        for start in range(0, len(pairs[0]), SLICE):
            arrays: list[pa.Array] = []
            for rows, at in zip((left, images), pairs, strict=True):
                some = at[start : start + SLICE]
                taken = rows.take(pa.array(some, mask=some < 0)).combine_chunks()
                there = pa.array(np.ones(len(some), np.bool_), mask=some < 0)
                arrays += [*(c.combine_chunks() for c in taken.columns), there]
            yield pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


def matched(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Returns the indexes of rows with equal numbers, pair by pair; -1 if that side has no row.

    >>> [a.tolist() for a in matched(np.array([7, 5, 9]), np.array([5, 5, 8, 7]))]
    [[1, 1, -1, 0, 2], [0, 1, 2, 3, -1]]
    """
    order = np.argsort(left, kind="stable")
    ordered = left[order]
    first, end = np.searchsorted(ordered, right), np.searchsorted(ordered, right, "right")
    many = end - first
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


def side_of(
    files: Sequence[Path], table: VendorTable, kinds: Mapping[str, str], more: Sequence[str] = ()
) -> tuple[GroupReader, list[RowGroup]] | None:
    """Returns a table's side and its row groups; None if its files are unsuitable for `RangeJoin`.

    Args:
        files: its Parquet files.
        table: its declared columns, which must have their declared types or smaller integers.
        kinds: the columns that Spark finds in the files, with types.
        more: its other columns, as named in the files.
    """
    found = find_columns(list(kinds), table, where=table.name)
    columns = [(c.name, found.get(c.name), c.type) for c in table.columns]
    columns += [(name, name, kinds[name]) for name in more]
    groups: list[RowGroup] = []
    for at, file in enumerate(files):
        with pq.ParquetFile(file) as parquet:
            if not fits(parquet, columns) or not _no_halves(parquet.metadata, found.get(POSITION)):
                return None
            mine = groups_of(at, parquet.metadata, found[SEQUENCE])
        if mine is None:
            return None
        groups += mine
    return GroupReader(tuple(str(f.absolute()) for f in files), tuple(columns), SEQUENCE), groups


def _no_halves(footer: pq.FileMetaData, position: str | None) -> bool:
    """Whether a file has no halves of split records."""
    if position is None:
        return True
    at = column_indexes(footer)[position]
    spans = [footer.row_group(n).column(at).statistics for n in range(footer.num_row_groups)]
    return all(s is not None and (not s.has_min_max or (s.min, s.max) == (0, 0)) for s in spans)


def joined(tables: Tables, tracking: str | None, source: CapturedTable, *, alone: bool) -> DataFrame | None:
    """Returns the rows of both tables of a source, as `changes` joins them; None if Spark has to join them.

    Args:
        tables: the vendor's tables.
        tracking: the name of the tracking table.
        source: the source table.
        alone: whether it is the only source table.
    """
    share = Share.of(source, alone)
    if not isinstance(tables, LoadedTables) or tracking is None or source.change_table is None:
        return None
    files = [tables.files_of(name) for name in (tracking, source.change_table)]
    if share is None or files[0] is None or files[1] is None:
        return None
    kinds = [
        {f.name: f.dataType.simpleString() for f in tables[n].schema if f.name not in ADDED_COLUMNS}
        for n in (tracking, source.change_table)
    ]
    sides = side_of(files[0], TRACKING, kinds[0]), side_of(files[1], CHANGE, kinds[1], source.columns)
    if sides[0] is None or sides[1] is None:
        return None
    plan = ranges([sides[1][1], sides[0][1]])
    if plan is None:
        return None
    spark = tables[tracking].sparkSession
    return _rows(spark.range(0, len(plan), 1, len(plan)), RangeJoin(sides[0][0], sides[1][0], share, plan))


def _rows(tasks: DataFrame, join: RangeJoin) -> DataFrame:
    columns = join.columns()
    plain = ", ".join(f"c{i} {kind}" for i, kind in enumerate(columns.values()))
    df = over_rows(tasks, join, plain).toDF(*columns)
    more: dict[str, Column] = {}
    for side, of in (("_t", join.tracking), ("_c", join.images)):
        names = [n for n, have, _ in of.columns if have is not None]
        row = F.to_json(F.struct(*[F.col(quoted(f"{side}:{n}")).alias(n) for n in names]))
        more |= {
            f"{side}:{FILE}": of.path(F.col(quoted(f"{side}:{FILE_INDEX}"))),
            f"{side}:{ROW}": F.col(quoted(f"{side}:{NUMBER}")),
            f"{side}:{WHY}": F.lit(None).cast("string"),
            f"{side}:{RAW}": F.when(F.col(quoted(f"{side}:{THERE}")), row),
        }
    more[f"_c:{SPLIT}"] = F.lit(None).cast("string")
    return df.select("*", *(value.alias(name) for name, value in more.items()))
