"""Tables written to folders, which `file_reader` reads: by Spark, several at once, or by this process."""

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
    """The Arrow schema of a table for these rows, all columns nullable; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC")) for f in rows.schema])


def prepare_delta_table(rows: DataFrame, path: str) -> None:
    """Makes a Delta table with at least the columns of these rows, whatever they are called.

    Delta's own writer makes no table with blanks or any of `,;{}()=` in its columns' names, nor gives one
    such a column; it appends to a table that has them. So delta-rs makes tables and adds columns.
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
        group_bytes: about how large a row group of Parquet files is; Spark's 128 MB if it is not given.
        base64: whether bytes are base64, not hex, in text files.

    Raises:
        ConfigError: the folder has something in it already.
    """
    places = {name: Path(path) / name for name in tables}
    for place in places.values():
        if place.exists() and any(place.iterdir()):
            raise ConfigError(f"{place} is not empty", hint="write into a new folder")
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


def _save(df: DataFrame, place: str, kind: str, tag: str, group_bytes: int | None, base64: bool) -> None:
    context = df.sparkSession.sparkContext
    context.addJobTag(tag)
    try:
        rows = as_text(df, base64=df.columns if base64 else ()) if kind in ("csv", "json") else df
        writer = rows.write.mode("append")
        if kind == "csv":
            writer.options(**CSV).csv(place)
        elif kind == "json":
            writer.option("ignoreNullFields", "false").json(place)
        else:
            if kind == "delta":
                prepare_delta_table(df, place)
            elif group_bytes:
                writer = writer.option("parquet.block.size", group_bytes)
            writer.format(kind).save(place)
    finally:
        context.removeJobTag(tag)


def as_text(df: DataFrame, *, base64: Collection[str] = ()) -> DataFrame:
    """Values that CSV and JSON cannot represent, as text that `types.as_type` reads again: bytes as
    upper-case hex, or base64 in some columns, times with all their digits, arrays, floating-point numbers."""
    made = []
    for field in df.schema:
        value, kind = F.col(quoted(field.name)), field.dataType.simpleString()
        if kind == "binary":
            value = bytes_as_text(value, base64=field.name in base64)
        elif kind.startswith("array"):
            value = join_array(value)
        elif kind in ("date", "timestamp", "timestamp_ntz", "float", "double"):
            value = value.cast("string")
        made.append(value.alias(field.name))
    return df.select(*made)


KINDS = ("parquet", "csv", "delta")
"""Kinds of file that are written here."""


class TableWriter:
    """One table, batch after batch: `write`, then `close`; `rows` counts them.

    Args:
        place: the table's folder, new.
        schema: of all batches.
        kind: one of `KINDS`.
    """

    def __init__(self, place: Path, schema: pa.Schema, kind: str) -> None:
        self.rows = 0
        self._place, self._schema, self._kind = place, schema, kind
        with room(str(place)):
            place.mkdir(parents=True, exist_ok=True)
            name = place / f"part-{uuid.uuid4().hex}"
            if kind == "delta":
                self._part = lake.Part(str(place), schema)
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
        """Finishes the table; there is one even without rows."""
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
    """Binary columns as upper-case hex, times with all their digits."""
    for place, field in enumerate(rows.schema):
        kind = _text_type(field.type)
        if kind != field.type:
            column = rows[field.name].combine_chunks()
            text = hex_digits(column) if pa.types.is_binary(field.type) else column.cast(kind)
            rows = rows.set_column(place, field.name, text)
    return rows


def _text_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_binary(kind) or pa.types.is_timestamp(kind) else kind
