"""Changes of change tables that others made, and that come late: after their target has passed their place.

A target's progress is the number of the last change it has, so changes with lower numbers that come in later
files would be skipped, as those are that it has. How many there were is written down each time; when there
are more of them now, some have come late. Nobody can put them into the target where they belong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import pyarrow as pa

from ..errors import ApplyError
from .table_notes import TableNotes

PASSED = "_passed"
"""The Delta table that says which changes targets had passed: `TableNotes` with `upto` and `changes`."""
_VALUES = pa.schema([("upto", pa.int64()), ("changes", pa.int64())])


@dataclass(frozen=True)
class Passed:
    """A change number that a target has reached, and how many changes there were up to it."""

    upto: int = -1
    changes: int = 0


class LateChanges:
    """What the targets of a task had passed when they were last applied; a table below the folder `root`."""

    def __init__(self, root: str, task: str) -> None:
        self._notes = TableNotes(f"{root.rstrip('/')}/{PASSED}", task, _VALUES)
        self._known = {table: Passed(*values) for table, values in self._notes.newest().items()}

    def upto(self, table: str) -> int:
        """The change number up to which changes are to be counted, for `late`."""
        return self._known.get(table, Passed()).upto

    def late(self, found: Mapping[str, int], reached: Mapping[str, int]) -> dict[str, int]:
        """How many changes have come late, by table, if any.

        Args:
            found: how many changes there are now up to the number that `upto` says.
            reached: the progress of the targets; one that was made anew gets all changes.
        """
        return {
            table: many - self._known[table].changes
            for table, many in sorted(found.items())
            if table in self._known
            and self._known[table].upto <= reached.get(table, -1)
            and many > self._known[table].changes
        }

    def note(self, found: Mapping[str, Passed]) -> None:
        """Writes down what the targets have passed. Files that were taken away are no reason to forget what
        was in them, as long as the target stands where it stood."""
        new = {}
        for table, now in found.items():
            before = self._known.get(table, Passed())
            if now.upto != before.upto or now.changes > before.changes:
                new[table] = now
        if new:
            self._notes.add({table: astuple(one) for table, one in new.items()})


def refuse(late: Mapping[str, int], where: str) -> None:
    """Raises ApplyError if changes of any table have come late."""
    if late:
        raise ApplyError(
            f"changes came after their target had passed their place: {'; '.join(said(late))}",
            where=where,
            hint="remove these targets and apply everything anew; or apply without them: `--on-late skip`",
        )


def said(late: Mapping[str, int]) -> Sequence[str]:
    """One text a table.

    >>> said({"shop.item": 1200, "shop.line": 1})
    ['shop.item: 1,200 changes came late', 'shop.line: 1 change came late']
    """
    return [f"{table}: {many:,} change{'s' * (many > 1)} came late" for table, many in late.items()]
