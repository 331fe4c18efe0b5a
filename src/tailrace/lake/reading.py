"""Rows of a Delta table, read by Arrow itself."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake import DeltaTable

from .parts import filesystem

_FEATURES = {"timestampNtz", "typeWidening"}
"""Features of Delta tables that delta-rs and Arrow can read."""


def unread(delta: DeltaTable) -> list[str]:
    """The features of a Delta table that are not read here."""
    return sorted(set(delta.protocol().reader_features or []) - _FEATURES)


def dataset(delta: DeltaTable) -> ds.Dataset:
    """The rows of the version that `delta` has loaded.

    Arrow opens the files through its own file system. The one that delta-rs would give it is written in
    Python, which Arrow's threads then call: if the interpreter ends at that moment, the process aborts.
    """
    fs, folder = filesystem(delta.table_uri)
    return delta.to_pyarrow_dataset(filesystem=pyarrow.fs.SubTreeFileSystem(folder, fs))


def is_missing(column: str) -> ds.Expression:
    """Whether a column is NULL, also in files that are older than it or have no statistics of it: of these
    delta-rs tells Arrow a range without ends, which Arrow takes for a column without NULLs."""
    return pc.field(column).cast(pa.string()).is_null()


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A file's rows in a schema's columns and types; columns that are younger than the file are NULL.

    >>> rows = pa.record_batch({"a": pa.array([1], pa.int32()), "gone": [2]})
    >>> fitted(rows, pa.schema([("a", pa.int64()), ("new", pa.string())])).to_pylist()
    [{'a': 1, 'new': None}]
    """
    have, many = set(batch.schema.names), batch.num_rows
    arrays = [batch[f.name].cast(f.type) if f.name in have else pa.nulls(many, f.type) for f in schema]
    return pa.record_batch(arrays, schema=schema)
