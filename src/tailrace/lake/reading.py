"""Rows of a Delta table, read by Arrow itself."""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake import DeltaTable

from ..errors import UnsupportedError
from .file_ranges import known
from .parts import LOCAL, filesystem

_FEATURES = {"timestampNtz", "typeWidening"}
"""Features of Delta tables that delta-rs and Arrow can read."""


def unread(delta: DeltaTable) -> list[str]:
    """The features of a Delta table that are not read here."""
    more = set(delta.protocol().reader_features or []) - _FEATURES
    return sorted(more | ({"columnMapping"} if maps_columns(delta) else set()))


def maps_columns(delta: DeltaTable) -> bool:
    """Whether a table's files call its columns by other names, which delta-rs neither reads nor writes."""
    return delta.metadata().configuration.get("delta.columnMapping.mode") not in (None, "none")


def dataset(delta: DeltaTable, *, ranges: bool = True) -> ds.Dataset:
    """The rows of the version that `delta` has loaded; without `ranges` a filter opens all files.

    Arrow opens the files through its own file system. The one that delta-rs would give it is written in
    Python, which Arrow's threads then call: if the interpreter ends at that moment, the process aborts.

    Raises:
        UnsupportedError: the table has features that are not read here.
    """
    if more := unread(delta):
        raise UnsupportedError(
            f"the table has {', '.join(more)}, which this process does not read",
            where=delta.table_uri,
            hint="read it with Spark, or another reader that knows it (docs/readers.md)",
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
    """A table's folder as `filesystem` takes it: a path on this machine, an address elsewhere."""
    address = str(delta.table_uri).rstrip("/")
    return filesystem(address)[1] if address.startswith(LOCAL) else address


def paths(delta: DeltaTable) -> list[str]:
    """The files of the version that `delta` has loaded, each as `filesystem` takes it. delta-rs has the
    table's folder as an address there (`my%20lake`), even without a scheme, and what is below it as it is."""
    folder, address = folder_of(delta), str(delta.table_uri).removeprefix(LOCAL).rstrip("/")
    return [folder + one.removeprefix(LOCAL).removeprefix(address) for one in delta.file_uris()]


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A file's rows in a schema's columns and types; columns that are younger than the file are NULL.

    >>> rows = pa.record_batch({"a": pa.array([1], pa.int32()), "gone": [2]})
    >>> fitted(rows, pa.schema([("a", pa.int64()), ("new", pa.string())])).to_pylist()
    [{'a': 1, 'new': None}]
    """
    have, many = set(batch.schema.names), batch.num_rows
    arrays = [batch[f.name].cast(f.type) if f.name in have else pa.nulls(many, f.type) for f in schema]
    return pa.record_batch(arrays, schema=schema)
