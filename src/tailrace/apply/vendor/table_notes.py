"""An append-only Delta table in which one call of `tailrace apply` leaves values for the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...state.state_table import Declaration, Row, StateTable


@dataclass(frozen=True)
class TableNotes:
    """The notes of one kind about the tables of a task.

    Attributes:
        path: the Delta table, with `task_name`, `table_name` and the values.
        task: the name of the task.
        values: names and types of the values.
    """

    path: str
    task: str
    values: pa.Schema

    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """The noted values, each with its table, oldest first."""
        return [(table, values) for task, table, values in self._table.rows() if task == self.task]

    def add(self, new: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Adds values of tables in one commit; values that are not given are NULL."""
        self._table.append({"task_name": self.task, "table_name": t, **values} for t, values in new)

    @property
    def _table(self) -> StateTable[tuple[str, str, dict[str, Any]]]:
        names = ("task_name", "table_name")
        columns = (*((n, pa.string()) for n in names), *((f.name, f.type) for f in self.values))
        return StateTable(self.path, Declaration("notes", columns, names, "none", "state.note"), self._parse)

    def _parse(self, row: Row) -> tuple[str, str, dict[str, Any]]:
        return row["task_name"], row["table_name"], {n: row[n] for n in self.values.names}
