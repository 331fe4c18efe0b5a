"""What one call of `tailrace apply` leaves for the next about each table: rows of a Delta table that are only
added; the newest one of the same thing counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...state.state_table import Declaration, Row, StateTable


@dataclass(frozen=True)
class TableNotes:
    """The notes of one kind.

    Attributes:
        path: the table, append-only: `task_name`, `table_name` and the values.
        task: whose tables they are about.
        values: names and types of the values.
    """

    path: str
    task: str
    values: pa.Schema

    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """Tables and the values that were noted of them, by name, the newest last."""
        return [(table, values) for task, table, values in self._table.rows() if task == self.task]

    def add(self, new: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Notes values of tables, in one commit; None for those that are not given."""
        self._table.append({"task_name": self.task, "table_name": t, **values} for t, values in new)

    @property
    def _table(self) -> StateTable[tuple[str, str, dict[str, Any]]]:
        names = ("task_name", "table_name")
        columns = (*((n, pa.string()) for n in names), *((f.name, f.type) for f in self.values))
        return StateTable(self.path, Declaration("notes", columns, names, "none", "state.note"), self._parse)

    def _parse(self, row: Row) -> tuple[str, str, dict[str, Any]]:
        return row["task_name"], row["table_name"], {n: row[n] for n in self.values.names}
