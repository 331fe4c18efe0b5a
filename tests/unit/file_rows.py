"""Rows of a comparison in Parquet files of a test."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.validate.file_rows import FileRows

Rows = Callable[..., FileRows]


def rows_in(folder: Path, *, files: int = 1, group: int = 1 << 20, **columns: Any) -> FileRows:
    """The rows, in so many files with row groups of so many rows."""
    table, paths = pa.table(columns), []
    step = -(-table.num_rows // files) or 1
    for first in range(0, max(table.num_rows, 1), step):
        paths.append(str(folder / f"{uuid.uuid4().hex}.parquet"))
        pq.write_table(table.slice(first, step), paths[-1], row_group_size=group)
    return FileRows.of(paths, table.schema, table.num_rows)
