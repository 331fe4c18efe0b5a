"""Converts rows from one layout to another: columns are renamed, widened, converted to text, added, dropped.

Threads, or tasks on a cluster, rewrite the files of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...execution import Job, map_tasks, over_rows
from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ...lake.table import LakeTable
from ...model.change import Column, Relation
from ...model.types import arrow_type, schema_of
from ...wire.pgoutput_write import text_of
from ..layout_changes import missing_value
from ..parts import result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 16 << 20
"""The approximate bytes of rows that are converted together."""


@dataclass(frozen=True)
class Reshape:
    """Converts rows from the layout `before` to the layout `after`. `attnum` identifies columns. A column
    that rows do not have gets its `missing` value.

    >>> a = Column("a", 1, "integer", "int4", "int")
    >>> b = Column("b", 1, "bigint", "int8", "bigint")
    >>> layout = lambda column: Relation(1, "s", "t", "d", (column,))
    >>> (rows,) = Reshape(layout(a), layout(b))([pa.record_batch({"a": pa.array([7], pa.int32())})])
    >>> rows.to_pylist()
    [{'b': 7}]
    """

    before: Relation
    after: Relation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        old, schema = {c.attnum: c for c in self.before.columns}, schema_of(self.after.columns)
        for rows in batches:
            have, columns = set(rows.schema.names), []
            for c in self.after.columns:
                was = old.get(c.attnum)
                if was is not None and was.name in have:
                    columns.append(_converted(rows[was.name], c))
                else:
                    columns.append(_missing(c, rows.num_rows))
            yield pa.record_batch(columns, schema=schema)


def _converted(values: pa.Array, column: Column) -> pa.Array:
    """Returns values in a column's type, with texts as PostgreSQL writes them."""
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
    """Returns the values of an added column in older rows."""
    if column.missing is None:
        return pa.nulls(rows, arrow_type(column.type))
    return pa.repeat(missing_value(column, column.missing)[0], rows)


@dataclass(frozen=True)
class ReshapeTask:
    """Writes rows in another layout to parts of a table, which are not committed: the rows of one of its
    files, or given rows.

    Attributes:
        files: reads the table's files.
        new_files: writes files in the new layout.
        reshape: converts the rows.
        schema: the table's schema.
    """

    files: DataFiles
    new_files: DataFiles
    reshape: Reshape
    schema: pa.Schema

    def of_file(self, name: str) -> list[lake.AddedFile]:
        """Writes the rows of a file to a part, and returns its files."""
        with self.files.open(name) as file:
            return self._part(self.files.batches(file, self.schema, size=BATCH))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for added in self._part(batches):
            yield result(file=added.to_json())

    def _part(self, batches: Iterable[pa.RecordBatch]) -> list[lake.AddedFile]:
        part = self.new_files.part(schema_of(self.reshape.after.columns))
        for rows in self.reshape(batches):
            part.write(rows)
        return part.close_all()


def reshaped_files(
    session: SparkSession | None, now: LakeTable, new_files: DataFiles, before: Relation, after: Relation
) -> list[lake.AddedFile]:
    """Writes all rows of an open table in another layout to parts, which are not committed. `new_files`
    writes them."""
    names, files = {c.name for c in before.columns}, now.data_files()
    old_schema = pa.schema([f.with_nullable(True) for f in now.schema if f.name in names])
    task = ReshapeTask(now.files, new_files, Reshape(before, after), old_schema)
    rows = sum(file["num_records"] or 0 for file in files)
    job = Job("apply", f"apply a new layout of {after.table}: {rows:,} rows", rows)
    written = map_tasks(task.of_file, [file["path"] for file in files], session=session, job=job)
    return [part for parts in written for part in parts]


def reshaped(rows: DataFrame, before: Relation, after: Relation) -> DataFrame:
    """Converts the rows of a DataFrame from one layout to another."""
    kinds = ", ".join(f"c{i} {c.type}" for i, c in enumerate(after.columns))
    return over_rows(rows, Reshape(before, after), kinds).toDF(*[c.name for c in after.columns])
