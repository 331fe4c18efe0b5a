"""What a target can do besides what every target does, declared as data: who plans asks it, never its class.

Everything here makes batches cheaper, or says more of a change; a target that declares nothing gets the same
rows, outcomes and key log by plans of several jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import Column

    from ...errors import TailraceError
    from ..plan import TableBatch
    from .audit import Audit, Audited
    from .task_batch import TaskBatch


class Audits(Protocol):
    """Merges a batch and finds the outcome of each change, in one task."""

    def audited(self, batch: TableBatch, audit: Audit, extras: Mapping[str, Column]) -> Audited | str | None:
        """Applies one batch, truncates among its changes: what is left of them is what the engine says.

        `extras`: the columns of `engine.columns` that the batch has. Gives what was found; None when the
        table, or the batch, is not for one task: nothing is written then. `audit.LOST`: the table has the
        batch, and what was found is not known.
        """


class KeepsNotes(Protocol):
    """Keeps a note of the key log's files with each batch that it audits, in the same commit."""

    def notes(self) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""


class Shares(Protocol):
    """Has batches of different tables, whatever their changes are, merged by tasks that read them themselves,
    side by side."""

    def path(self, table: str) -> str:
        """Where the table's rows are; others' may be there, too."""

    def loads(self, table: str) -> bool:
        """Whether `Target.load` takes parts of the table: it is loaded without Spark."""

    def merge_many(self, batches: Sequence[TaskBatch]) -> list[Audited | TailraceError | None]:
        """Gives for each batch, in their order, what was done, or the error of a table whose changes were not
        applied, or None: it needs a job of its own."""


@dataclass(frozen=True)
class Capabilities:
    """What a target can do; a field that holds an object says that it can, and is what does it.

    Attributes:
        versions: `keys_there` and `rows_there` know the rows as of an older change number (`reached`): what a
            crash kept from the key log is found there. A target without versions keeps notes, or has no key
            log.
        memory_bytes: about what a task that works for it may hold in memory; None: nobody said.
        judges: its audits find every change that it cannot hold, whatever the mode, in batches of any size.
        audits, notes, shares: see the classes.
    """

    versions: bool = False
    memory_bytes: int | None = None
    judges: bool = False
    audits: Audits | None = None
    notes: KeepsNotes | None = None
    shares: Shares | None = None
