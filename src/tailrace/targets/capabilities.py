"""Capabilities of a target beyond the contract, declared as data. Planners read them, never the target's
class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class KeepsNotes(Protocol):
    """Keeps a note of a batch's key log, in the batch's own commit."""

    def notes(self) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a target.

    Attributes:
        versions: the target has its rows as of older change numbers. If a crash has kept changes from the key
            log, their outcome is decided again from these rows. A target without versions has notes, or no
            key log.
        memory_bytes: about how much memory a task that works for the target may use; None: no limit.
        ordered: a batch that this memory does not hold is read in the order of its changes.
        notes: keeps notes; None: the target keeps none.
    """

    versions: bool = False
    memory_bytes: int | None = None
    ordered: bool = False
    notes: KeepsNotes | None = None

    def key_log_notes(self) -> list[str]:
        """All notes of the target about its key log; none if it keeps none."""
        return [] if self.notes is None else [note for _, _, note in self.notes.notes()]
