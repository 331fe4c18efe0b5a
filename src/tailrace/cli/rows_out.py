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
from ..query.shown import cell
from .out import json_of


def csv(found: Result) -> None:
    """CSV with a first line of names; lists, structs and bytes as text."""
    schema = pa.schema([(f.name, pa.string() if _deep(f.type) else f.type) for f in found.schema])
    with pyarrow.csv.CSVWriter(sys.stdout.buffer, schema) as sink:
        for batch in found.batches():
            sink.write_batch(pa.record_batch([_flat(c) for c in batch.columns], schema=schema))


def lines(found: Result) -> None:
    """JSON, one object a line: decimals and times as text, bytes as base64, and `"NaN"`, `"Infinity"`,
    `"-Infinity"`."""
    for batch in found.batches():
        for row in batch.to_pylist():
            sys.stdout.write(json_of(row, default=_json) + "\n")
    sys.stdout.flush()


def parquet(found: Result) -> None:
    """A Parquet file."""
    with pq.ParquetWriter(sys.stdout.buffer, found.schema) as sink:
        for batch in found.batches():
            sink.write_batch(batch)


WRITERS: dict[str, Callable[[Result], None]] = {"csv": csv, "json": lines, "parquet": parquet}
"""What writes each kind of output."""


def _deep(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _flat(column: pa.Array) -> pa.Array:
    if not _deep(column.type):
        return column
    return pa.array([None if v is None else cell(v) for v in column.to_pylist()], pa.string())


def _json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
