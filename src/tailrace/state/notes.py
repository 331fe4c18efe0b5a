"""Notes of a process about single tables, as JSON (table `notes`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..config.task import Task
from .declarations import NOTES
from .state_table import StateTable


class Notes:
    """The notes of one kind, by table."""

    def __init__(self, task: Task, kind: str) -> None:
        self._kind = kind
        self._table = StateTable(task.control_path(NOTES.name), NOTES, lambda row: str(row["note"]))

    def read(self) -> dict[str, Any]:
        """The newest note of each table."""
        newest = self._table.latest().items()
        return {subject: json.loads(note) for (kind, subject), note in newest if kind == self._kind}

    def write(self, changed: Mapping[str, Any]) -> None:
        """Replaces the notes of these tables, in one commit."""
        self._table.append(
            {"kind": self._kind, "subject": subject, "note": json.dumps(note)}
            for subject, note in changed.items()
        )
