"""Arrow rows as bytes, for where only a value of a row travels: from tasks to the driver, for example."""

from __future__ import annotations

import pyarrow as pa


def packed(rows: pa.Table | pa.RecordBatch) -> bytes:
    """The rows as an Arrow stream.

    >>> unpacked(packed(pa.table({"n": [1, None]}))).to_pylist()
    [{'n': 1}, {'n': None}]
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> pa.Table:
    """The rows of a stream."""
    return pa.ipc.open_stream(data).read_all()
