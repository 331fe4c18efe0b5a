"""Capabilities of a target beyond the contract, declared as data. Planners read them, never the target's
class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..errors import TailraceError
    from .audit import Audited
    from .change_batch import TaskBatch


class KeepsNotes(Protocol):
    """Keeps a note of a batch's key log, in the batch's own commit."""

    def notes(self) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""


class Shares(Protocol):
    """Merges batches of different tables by tasks, side by side. Each batch is one commit with its progress,
    on the rows that were read."""

    def path(self, table: str) -> str:
        """Where the table's rows are; others' may be there, too."""

    def loads(self, table: str) -> bool:
        """Whether `Target.load` takes parts of the table: it is loaded without Spark."""

    def merge_many(self, batches: Sequence[TaskBatch]) -> Sequence[Audited | TailraceError | None]:
        """Gives for each batch, in their order, what was done, or the error of a table whose changes were not
        applied. None: a database's memory does not hold the batch; nothing was done.

        A batch whose first changes the target has already is merged up to there: the key log alone needs
        these. The caller merges the rest.
        """


@dataclass(frozen=True)
class Capabilities:
    """What a target can do; a field that holds an object says that it can, and is what does it.

    Attributes:
        versions: it has its rows as of older change numbers: what a crash kept from the key log is decided
            again as of them. A target without versions keeps notes, or has no key log.
        memory_bytes: about what a task that works for it may hold in memory; None: no limit.
        ordered: a batch that its memory does not hold needs its changes in their order.
        notes, shares: see the classes.
    """

    versions: bool = False
    memory_bytes: int | None = None
    ordered: bool = False
    notes: KeepsNotes | None = None
    shares: Shares | None = None
