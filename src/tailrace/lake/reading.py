"""Rows of a Delta table, read by Arrow itself."""

from __future__ import annotations

import pyarrow.dataset as ds
import pyarrow.fs
from deltalake import DeltaTable

from .parts import filesystem


def dataset(delta: DeltaTable) -> ds.Dataset:
    """The rows of the version that `delta` has loaded.

    Arrow opens the files through its own file system. The one that delta-rs would give it is written in
    Python, which Arrow's threads then call: if the interpreter ends at that moment, the process aborts.
    """
    fs, folder = filesystem(delta.table_uri)
    return delta.to_pyarrow_dataset(filesystem=pyarrow.fs.SubTreeFileSystem(folder, fs))
