"""Reads rows of a Delta table with Arrow."""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake import DeltaTable

from ..errors import UnsupportedError
from .file_ranges import known
from .storage import LOCAL, filesystem

_FEATURES = {"timestampNtz", "typeWidening"}
"""Delta table features that delta-rs and Arrow support."""


def unread(delta: DeltaTable) -> list[str]:
    """Returns the features of a Delta table that are not supported here."""
    more = set(delta.protocol().reader_features or []) - _FEATURES
    return sorted(more | ({"columnMapping"} if maps_columns(delta) else set()))


def maps_columns(delta: DeltaTable) -> bool:
    """Returns whether a table's files use other column names, which delta-rs neither reads nor writes."""
    return delta.metadata().configuration.get("delta.columnMapping.mode") not in (None, "none")


def dataset(delta: DeltaTable, *, ranges: bool = True) -> ds.Dataset:
    """Returns the rows of the version that `delta` has loaded; without `ranges`, a filter opens all files.

    Arrow opens the files through its own file system. That of delta-rs is written in Python, and called by
    Arrow's threads: if the interpreter ends at that moment, the process aborts.

    Raises:
        UnsupportedError: the table has features that are not supported here.
    """
    if more := unread(delta):
        raise UnsupportedError(
            f"the table has {', '.join(more)}, which is not supported without Spark",
            where=delta.table_uri,
            hint="read it with Spark, or another reader that supports it (docs/readers.md)",
        )
    fs, folder = filesystem(delta.table_uri)
    fs = pyarrow.fs.SubTreeFileSystem(folder, fs)
    schema, files = pa.schema(delta.schema().to_arrow()), pa.table(delta.get_add_actions(flatten=True))
    partitions = delta.metadata().partition_columns
    fields = schema if ranges else pa.schema([schema.field(name) for name in partitions])
    parquet = ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(unquote(path), fs, told)
        for path, told in zip(files["path"].to_pylist(), known(fields, files), strict=True)
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, fs)


def folder_of(delta: DeltaTable) -> str:
    """Returns a table's folder as expected by `filesystem`: a local path, or a URI elsewhere."""
    address = str(delta.table_uri).rstrip("/")
    return filesystem(address)[1] if address.startswith(LOCAL) else address


def paths(delta: DeltaTable) -> list[str]:
    """Returns the files of the version that `delta` has loaded, as expected by `filesystem`.

    delta-rs encodes the table's folder in them (`my%20lake`), even without a scheme, but not the rest of the
    path.
    """
    folder, address = folder_of(delta), str(delta.table_uri).removeprefix(LOCAL).rstrip("/")
    return [folder + one.removeprefix(LOCAL).removeprefix(address) for one in delta.file_uris()]


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a file's rows in a schema's columns and types; columns newer than the file are NULL.

    >>> rows = pa.record_batch({"a": pa.array([1], pa.int32()), "gone": [2]})
    >>> fitted(rows, pa.schema([("a", pa.int64()), ("new", pa.string())])).to_pylist()
    [{'a': 1, 'new': None}]
    """
    have, many = set(batch.schema.names), batch.num_rows
    arrays = [batch[f.name].cast(f.type) if f.name in have else pa.nulls(many, f.type) for f in schema]
    return pa.record_batch(arrays, schema=schema)
