"""Arrow rows as bytes, to be sent as one value, e.g. from tasks to the driver."""

from __future__ import annotations

import pyarrow as pa


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
