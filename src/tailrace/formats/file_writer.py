"""Writes tables to folders, which `file_reader` reads: through Spark, several at once, or in this process."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ..errors import ConfigError, room
from ..execution import thread_pool
from ..lake import delta as lake
from ..model.quoting import quoted
from ..wire.octets import hex_digits
from .file_reader import CSV
from .spark_functions import F
from .types import bytes_as_text, join_array

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def table_schema(rows: DataFrame) -> pa.Schema:
    """Returns the Arrow schema of a table for these rows, all columns nullable; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC")) for f in rows.schema])


def prepare_delta_table(rows: DataFrame, path: str) -> None:
    """Creates a Delta table with at least the columns of these rows, whatever their names are.

    Delta's own writer cannot create tables or columns with blanks or any of `,;{}()=` in columns' names, but
    it appends to tables that have them. So delta-rs creates tables and adds columns.
    """
    schema = table_schema(rows)
    lake.create(path, schema)
    lake.add_columns(path, list(schema))


def save(
    tables: Mapping[str, DataFrame],
    path: str,
    kind: str,
    *,
    group_bytes: int | None = None,
    base64: bool = False,
) -> None:
    """Writes each table into a folder named after it. If one fails, or after Ctrl-C, the jobs of the others
    are cancelled.

    Args:
        tables: tables by name.
        path: the folder.
        kind: kind of file.
        group_bytes: the approximate size of a row group of Parquet files; by default Spark's 128 MB.
        base64: whether bytes are written as base64 instead of hex in text files.

    Raises:
        ConfigError: the folder is not empty.
    """
    places = {name: Path(path) / name for name in tables}
    for table_path in places.values():
        if table_path.exists() and any(table_path.iterdir()):
            raise ConfigError(f"{table_path} is not empty", hint="write into a new folder")
    tag = f"tailrace-{uuid.uuid4().hex}"
    with thread_pool("save", worth=len(tables) > 1) as pool:
        jobs = [
            pool.submit(_save, df, str(places[name]), kind, tag, group_bytes, base64)
            for name, df in tables.items()
        ]
        try:
            done = wait(jobs, return_when=FIRST_EXCEPTION).done
            if failed := [e for job in jobs if job in done and (e := job.exception())]:
                raise failed[0]
        except BaseException:
            for job in jobs:
                job.cancel()
            next(iter(tables.values())).sparkSession.sparkContext.cancelJobsWithTag(tag)
            raise


def _save(df: DataFrame, path: str, kind: str, tag: str, group_bytes: int | None, base64: bool) -> None:
    context = df.sparkSession.sparkContext
    context.addJobTag(tag)
    try:
        rows = as_text(df, base64=df.columns if base64 else ()) if kind in ("csv", "json") else df
        writer = rows.write.mode("append")
        if kind == "csv":
            writer.options(**CSV).csv(path)
        elif kind == "json":
            writer.option("ignoreNullFields", "false").json(path)
        else:
            if kind == "delta":
                prepare_delta_table(df, path)
            elif group_bytes:
                writer = writer.option("parquet.block.size", group_bytes)
            writer.format(kind).save(path)
    finally:
        context.removeJobTag(tag)


def as_text(df: DataFrame, *, base64: Collection[str] = ()) -> DataFrame:
    """Returns rows with text for values that CSV and JSON cannot represent; `types.as_type` reads it again.
    Bytes are upper-case hex, or base64 in some columns; times have all digits; also arrays and floating-point
    numbers."""
    result = []
    for field in df.schema:
        value, kind = F.col(quoted(field.name)), field.dataType.simpleString()
        if kind == "binary":
            value = bytes_as_text(value, base64=field.name in base64)
        elif kind.startswith("array"):
            value = join_array(value)
        elif kind in ("date", "timestamp", "timestamp_ntz", "float", "double"):
            value = value.cast("string")
        result.append(value.alias(field.name))
    return df.select(*result)


KINDS = ("parquet", "csv", "delta")
"""Kinds of file that `TableWriter` writes."""


class TableWriter:
    """Writes one table in batches: `write`, then `close`; `rows` counts them.

    Args:
        folder: the table's new folder.
        schema: of all batches.
        kind: one of `KINDS`.
    """

    def __init__(self, folder: Path, schema: pa.Schema, kind: str) -> None:
        self.rows = 0
        self._place, self._schema, self._kind = folder, schema, kind
        with room(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            name = folder / f"part-{uuid.uuid4().hex}"
            if kind == "delta":
                self._part = lake.Part(str(folder), schema)
            elif kind == "csv":
                texts = pa.schema([(f.name, _text_type(f.type)) for f in schema])
                self._csv = pyarrow.csv.CSVWriter(f"{name}.csv", texts)
            else:
                self._parquet = pq.ParquetWriter(f"{name}.parquet", schema, store_schema=False)

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows."""
        self.rows += batch.num_rows
        rows = pa.Table.from_batches([batch])
        with room(str(self._place)):
            if self._kind == "delta":
                self._part.write(rows)
            elif self._kind == "csv":
                self._csv.write_table(text_columns(rows))
            else:
                self._parquet.write_table(rows)

    def close(self) -> None:
        """Finishes the table; it exists even without rows."""
        with room(str(self._place)):
            if self._kind == "delta":
                added = self._part.close()
                lake.create(str(self._place), self._schema)
                lake.commit(str(self._place), [added] if added else [], progress={})
            elif self._kind == "csv":
                self._csv.close()
            else:
                self._parquet.close()


def text_columns(rows: pa.Table) -> pa.Table:
    """Returns binary columns as upper-case hex, and times with all digits."""
    for index, field in enumerate(rows.schema):
        kind = _text_type(field.type)
        if kind != field.type:
            column = rows[field.name].combine_chunks()
            text = hex_digits(column) if pa.types.is_binary(field.type) else column.cast(kind)
            rows = rows.set_column(index, field.name, text)
    return rows


def _text_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_binary(kind) or pa.types.is_timestamp(kind) else kind
