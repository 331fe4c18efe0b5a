"""What one call of `tailrace apply` leaves for the next about each table: rows of a Delta table that are only
added; the newest of a table counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from ..lake import delta as lake


@dataclass(frozen=True)
class TableNotes:
    """The notes of one kind.

    Attributes:
        path: the Delta table: `task_name`, `table_name`, the values, `noted` (UTC).
        task: whose tables they are about.
        values: names and types of the values.
    """

    path: str
    task: str
    values: pa.Schema

    def newest(self) -> dict[str, tuple[Any, ...]]:
        """The values that were noted last, by table."""
        if not lake.exists(self.path):
            return {}
        rows = lake.read(self.path).sort_by("noted").to_pylist()  # a row for what changed in a call
        mine = [r for r in rows if r["task_name"] == self.task]
        return {r["table_name"]: tuple(r[n] for n in self.values.names) for r in mine}

    def add(self, new: Mapping[str, tuple[Any, ...]]) -> None:
        """Notes values of tables."""
        now = datetime.now(timezone.utc)
        rows = [(self.task, table, *values, now) for table, values in sorted(new.items())]
        names = [pa.field(n, pa.string()) for n in ("task_name", "table_name")]
        schema = pa.schema([*names, *self.values, pa.field("noted", pa.timestamp("us", "UTC"))])
        lake.append(self.path, pa.table(list(map(list, zip(*rows, strict=True))), schema=schema))
