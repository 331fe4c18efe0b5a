"""Rows of one layout in another, in arrays: renamed, widened, made text, added, dropped.

A Delta table's files name themselves, so threads (on a cluster Spark's tasks) write them anew; only rows that
deletion vectors hide are known to Spark alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ...execution import Job, map_tasks, over_rows
from ...lake import delta as lake
from ...lake.filestats import width
from ...model.change import Column, Relation
from ...model.types import arrow_type, schema_of
from ...wire.pgoutput_write import text_of
from ..layout_changes import missing_value
from ..parts import result, run
from .spark_io import rows_of
from .table_info import has_vectors, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 16 << 20
"""About so many bytes are reshaped at a time."""


@dataclass(frozen=True)
class Reshape:
    """Makes rows of the layout `before` those of the layout `after`. Columns are matched by `attnum`; one
    that rows do not have has its `missing` value.

    >>> a = Column("a", 1, "integer", "int4", "int")
    >>> b = Column("b", 1, "bigint", "int8", "bigint")
    >>> of = lambda column: Relation(1, "s", "t", "d", (column,))
    >>> (made,) = Reshape(of(a), of(b))([pa.record_batch({"a": pa.array([7], pa.int32())})])
    >>> made.to_pylist()
    [{'b': 7}]
    """

    before: Relation
    after: Relation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        old, schema = {c.attnum: c for c in self.before.columns}, schema_of(self.after.columns)
        for rows in batches:
            have, made = set(rows.schema.names), []
            for c in self.after.columns:
                was = old.get(c.attnum)
                there = was is not None and was.name in have
                made.append(_turned(rows[was.name], c) if there and was else _missing(c, rows.num_rows))
            yield pa.record_batch(made, schema=schema)


def _turned(values: pa.Array, column: Column) -> pa.Array:
    """Values in a column's type; as text, in PostgreSQL's own words."""
    wanted = arrow_type(column.type)
    if wanted != pa.string() or pa.types.is_string(values.type):
        return values.cast(wanted)
    if pa.types.is_boolean(values.type):
        return values.cast(wanted)
    text = text_of(values)
    if pa.types.is_timestamp(values.type):
        text = pc.replace_substring_regex(text, r"\.0+(\+00)?$", r"\1")
        text = pc.replace_substring_regex(text, r"(\.\d*[1-9])0+(\+00)?$", r"\1\2")
    return text.cast(wanted)


def _missing(column: Column, rows: int) -> pa.Array:
    """What rows older than a column have in it."""
    if column.missing is None:
        return pa.nulls(rows, arrow_type(column.type))
    return pa.repeat(missing_value(column, column.missing)[0], rows)


@dataclass(frozen=True)
class ReshapeTask:
    """Writes rows in another layout to parts of a table's folder, not committed: those of one of its files,
    or the rows that it is given. `schema`: the table's."""

    path: str
    reshape: Reshape
    schema: pa.Schema

    def of_file(self, path: str) -> lake.AddedFile | None:
        """The part made of a file; None if it has no rows."""
        return self._part(self._rows(path))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        added = self._part(batches)
        yield result(file=added.to_json() if added else None)

    def _part(self, batches: Iterable[pa.RecordBatch]) -> lake.AddedFile | None:
        part = lake.Part(self.path, schema_of(self.reshape.after.columns))
        for rows in self.reshape(batches):
            part.write(rows)
        return part.close()

    def _rows(self, path: str) -> Iterator[pa.RecordBatch]:
        fs, place = lake.filesystem(path)
        with pq.ParquetFile(place, filesystem=fs, buffer_size=1 << 20) as file:
            have = set(file.schema_arrow.names)
            there = [n for n in self.schema.names if n in have]
            most = BATCH // width(file.metadata, list(range(file.num_row_groups)), there)
            for rows in file.iter_batches(max(1024, most), columns=there, use_threads=False):
                yield lake.fitted(rows, self.schema)


def parts(
    spark: SparkSession, path: str, table: DeltaTable, before: Relation, after: Relation
) -> list[lake.AddedFile]:
    """All rows of a table (open as `table`) in another layout, as parts that are not committed. `spark` is
    started for deletion vectors alone."""
    names, schema = {c.name for c in before.columns}, lake.arrow_schema(table)
    mine = pa.schema([f.with_nullable(True) for f in schema if f.name in names])
    task = ReshapeTask(path, Reshape(before, after), mine)
    if has_vectors(table):
        found = [row["file"] for row in run(rows_of(spark, path, table), task)]
        return [lake.AddedFile.from_json(one) for one in found if one]
    rows = rows_in(table)
    job = Job("apply", f"apply a new layout of {after.table}: {rows:,} rows", rows)
    made = map_tasks(task.of_file, lake.paths(table), session=spark, job=job)
    return [one for one in made if one]


def reshaped(rows: DataFrame, before: Relation, after: Relation) -> DataFrame:
    """Rows of one layout in another, in Spark."""
    kinds = ", ".join(f"c{i} {c.type}" for i, c in enumerate(after.columns))
    return over_rows(rows, Reshape(before, after), kinds).toDF(*[c.name for c in after.columns])
