"""Rows of a task's state tables with numbers and times of the test's own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.lake import delta as lake
from tailrace.state.state_table import APP, Declaration


def put(path: str, declared: Declaration, *rows: dict[str, Any]) -> None:
    """Appends rows as they are."""
    made = pa.Table.from_pylist(list(rows), declared.schema)
    lake.append(path, made, progress={APP: max(row["number"] for row in rows)})
