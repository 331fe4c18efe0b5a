"""Answers on standard output, batch by batch: CSV, JSON lines, Parquet."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ..query.result import Result
from ..query.shown import cell, has_intervals, listed
from .out import json_of


def csv(found: Result) -> None:
    """CSV with a first line of names; lists, structs, intervals and bytes as text."""
    schema = _schema(found, _deep)
    with pyarrow.csv.CSVWriter(sys.stdout.buffer, schema) as sink:
        for batch in found.batches():
            sink.write_batch(_texts(batch, schema))


def lines(found: Result) -> None:
    """JSON, one object a line: decimals, times and intervals as text, bytes as base64, and `"NaN"`,
    `"Infinity"`, `"-Infinity"`."""
    for batch in found.batches():
        for row in listed(batch):
            sys.stdout.write(json_of(row, default=_json) + "\n")
    sys.stdout.flush()


def parquet(found: Result) -> None:
    """A Parquet file; columns with intervals, which Arrow does not write, as text."""
    schema = _schema(found, has_intervals)
    with pq.ParquetWriter(sys.stdout.buffer, schema) as sink:
        for batch in found.batches():
            sink.write_batch(_texts(batch, schema))


def _deep(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_interval(kind))


def _schema(found: Result, texts: Callable[[pa.DataType], bool]) -> pa.Schema:
    """The columns of an answer, text where `texts` holds for their type."""
    return pa.schema([f.with_type(pa.string()) if texts(f.type) else f for f in found.schema])


def _texts(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in those columns."""
    columns = [c if c.type == f.type else _text(c) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _text(column: pa.Array) -> pa.Array:
    return pa.array([None if v is None else cell(v) for v in column.to_pylist()], pa.string())


def _json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


WRITERS: dict[str, Callable[[Result], None]] = {"csv": csv, "json": lines, "parquet": parquet}
"""What writes each kind of output."""
