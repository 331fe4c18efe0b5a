"""Writers of rows to standard output, batch by batch: CSV, JSON lines, Parquet."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ..engine.key_timelines import contains_name
from ..query.render import ABSENT, UNKNOWN, format_value, has_intervals, mark_unknown, python_rows
from ..query.result import Result
from .output import json_of


def csv(found: Result) -> None:
    """CSV with a first line of names; lists, structs, intervals and bytes as text. Text is quoted, NULL is
    empty, and an unknown value is `?` without quotes."""
    schema = _schema(found, _deep)
    with pyarrow.csv.CSVWriter(sys.stdout.buffer, schema) as sink:
        if ABSENT not in schema.names:
            for batch in found.batches():
                sink.write_batch(_texts(batch, schema))
    if ABSENT in schema.names:
        for batch in found.batches():
            sys.stdout.buffer.write(_csv_lines(batch, schema))


def _csv_lines(batch: pa.RecordBatch, schema: pa.Schema) -> bytes:
    """CSV lines as Arrow writes them, with marks for unknown values."""
    lists = batch[ABSENT].cast(pa.list_(pa.string()))
    names, fields = lists.to_pylist(), []
    for field, values in zip(schema, batch.columns, strict=True):
        column = values if values.type == field.type else _text(_marked(values, field.name, names))
        text = column.cast(pa.string())
        if pa.types.is_string(field.type):
            text = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
        fields.append(pc.if_else(pa.array(contains_name(lists, field.name)), UNKNOWN, pc.fill_null(text, "")))
    lines = pc.binary_join_element_wise(*fields, ",").to_pylist()
    return "".join(f"{line}\n" for line in lines).encode()


def lines(found: Result) -> None:
    """JSON, one object a line: decimals, times and intervals as text, bytes as base64, and `"NaN"`,
    `"Infinity"`, `"-Infinity"`."""
    for batch in found.batches():
        for row in python_rows(batch):
            sys.stdout.write(json_of(row, default=_json) + "\n")
    sys.stdout.flush()


def parquet(found: Result) -> None:
    """A Parquet file; columns with intervals, which Arrow does not write, as text."""
    schema = _schema(found, has_intervals)
    with pq.ParquetWriter(sys.stdout.buffer, schema) as sink:
        for batch in found.batches():
            sink.write_batch(_texts(batch, schema))


def _marked(values: pa.Array, column: str, unknown: list[list[str] | None]) -> list[Any]:
    """The values of a column, structs with marks for unknown values."""
    rows = zip(values.to_pylist(), unknown, strict=True)
    return [mark_unknown({column: value, ABSENT: names})[column] for value, names in rows]


def _deep(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_interval(kind))


def _schema(found: Result, texts: Callable[[pa.DataType], bool]) -> pa.Schema:
    """The columns of a result; text where `texts` is true for their type."""
    return pa.schema([f.with_type(pa.string()) if texts(f.type) else f for f in found.schema])


def _texts(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the types of a schema."""
    columns = [
        c if c.type == f.type else _text(c.to_pylist()) for c, f in zip(batch.columns, schema, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _text(values: list[Any]) -> pa.Array:
    return pa.array([None if v is None else format_value(v) for v in values], pa.string())


def _json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


WRITERS: dict[str, Callable[[Result], None]] = {"csv": csv, "json": lines, "parquet": parquet}
"""Form of the rows -> its writer."""
