"""What one call of `tailrace apply` leaves for the next about each table: rows of a Delta table that are only
added; the newest one of the same thing counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..lake import delta as lake
from ..lake.rising import now_after


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

    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """Tables and the values that were noted of them, by name, the newest last; None for values that older
        versions did not note."""
        if not lake.exists(self.path):
            return []
        rows = lake.read(self.path).sort_by("noted").to_pylist()  # a row for what changed in a call
        mine = [r for r in rows if r["task_name"] == self.task]
        return [(r["table_name"], {n: r.get(n) for n in self.values.names}) for r in mine]

    def add(self, new: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Notes values of tables, in one commit; None for those that are not given."""
        rows = [{"task_name": self.task, "table_name": t, **values} for t, values in new]
        if not rows:
            return
        names = [pa.field(n, pa.string()) for n in ("task_name", "table_name")]
        schema = pa.schema([*names, *self.values, pa.field("noted", pa.timestamp("us", "UTC"))])
        lake.create(self.path, schema)
        lake.add_columns(self.path, list(self.values))  # those that older versions did not note
        now = now_after(self.path, "noted")
        lake.append(self.path, pa.Table.from_pylist([row | {"noted": now} for row in rows], schema=schema))
