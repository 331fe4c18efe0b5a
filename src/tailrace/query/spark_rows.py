"""Streams the rows of a Spark DataFrame partition by partition, so that they need not fit into
this process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import ConfigError, TailraceError, spark_lost
from ..execution import over_rows
from .duckdb_session import BATCH_ROWS
from .result import Result, unique_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def packed(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Returns the rows as the bytes of an Arrow stream.

    >>> unpacked(packed(pa.table({"n": [1, None]}))).to_pylist()
    [{'n': 1}, {'n': None}]
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> pa.Table:
    """Returns the rows of a stream."""
    return pa.ipc.open_stream(data).read_all()


_PART = "part"


def stream_rows(df: DataFrame, statement: str) -> Result:
    """Returns the rows of a statement's DataFrame, in its order. Each reading runs the statement again.

    This process holds at most two partitions.

    Raises:
        ConfigError: while the rows are read, if the statement fails on their values.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    schema = unique_names(to_arrow_schema(df.schema, timezone=zone))

    def batches() -> Iterator[pa.RecordBatch]:
        parts = over_rows(df, _pack, f"{_PART} binary")
        try:
            for row in parts.toLocalIterator(prefetchPartitions=True):
                rows = unpacked(row[_PART])
                values = [v.cast(f.type) for v, f in zip(rows.columns, schema, strict=True)]
                yield from pa.Table.from_arrays(values, schema=schema).to_batches(BATCH_ROWS)
        except (PySparkException, Py4JError) as error:
            raise statement_error(error, statement) from None

    return Result(schema, batches)


def statement_error(error: Exception, statement: str) -> TailraceError:
    """Returns the error for a statement that Spark cannot run, with its last cause and without Java's stack
    traces.

    >>> text = "An error\\n\\tat x.Y\\nCaused by: a.SparkException: [DIVIDE_BY_ZERO] Division\\n\\tat x.Y"
    >>> statement_error(RuntimeError(text), "SELECT 1 / 0").what
    'the statement cannot be run: [DIVIDE_BY_ZERO] Division'
    """
    if (lost := spark_lost(error, where=statement)) is not None:
        return lost
    cause = str(error).partition("\n\nJVM stacktrace")[0].rpartition("Caused by: ")[2]
    said = re.sub(r"^[\w.$]+(Exception|Error): ", "", re.split(r"\n\s*at ", cause)[0].strip())
    return ConfigError(f"the statement cannot be run: {said}", where=statement)


def _pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields each batch serialized as one binary value."""
    for batch in batches:
        yield pa.record_batch([pa.array([packed(batch)], pa.binary())], [_PART])
