"""Capabilities of a target beyond the contract, declared as data. Planners read them, never the target's
class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class KeepsNotes(Protocol):
    """A target that stores a note about a batch's key log files in the commit of the batch."""

    def notes(self) -> list[tuple[str, int, str]]:
        """Returns all notes as (table, change number, note), those of a table in order."""


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a target.

    Attributes:
        versions: the target has its rows as of older change numbers. If a crash prevented that changes were
            logged, their outcome is decided again from these rows. A target without versions has notes, or no
            key log.
        memory_bytes: the approximate memory that a task of the target may use; None: no limit.
        ordered: batches that are larger than this memory must be in the order of their changes.
        notes: reads the notes; None: the target stores no notes.
    """

    versions: bool = False
    memory_bytes: int | None = None
    ordered: bool = False
    notes: KeepsNotes | None = None

    def key_log_notes(self) -> list[str]:
        """Returns all notes of the target about its key log; empty if it stores no notes."""
        return [] if self.notes is None else [note for _, _, note in self.notes.notes()]
