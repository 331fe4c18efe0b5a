"""The record of what was applied (control table `applied`): sooner or later a row for every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..lake.failpoints import reach
from ..state import ledger
from ..state.ledger import APPLIED_APP, AppliedTable, Stored
from .backlog import Backlog


class Record:
    """Writes the record, and finds what is missing in it: a process may die, or lose its connection, between
    a commit and its record.

    Args:
        path: the `applied` table.
        there: gives the row for a target that has a table's changes up to a number; None: it has not.
    """

    def __init__(self, path: str, backlog: Backlog, there: Callable[[str, int], AppliedTable | None]) -> None:
        self._path, self._backlog, self._there = path, backlog, there
        self._newest: dict[str, int] | None = None
        self._sure: set[str] = set()
        self._untold: list[AppliedTable] = []

    def note(self, done: Iterable[AppliedTable]) -> None:
        """Keeps what was committed, for the next `write`."""
        self._untold += done

    def doubt(self, table: str) -> None:
        """Notes that a target may have more than was noted."""
        self._sure.discard(table)

    def write(self, last: Stored, *, ends: bool) -> None:
        """Records what was noted; `ends`: and that the front is applied up to the end of a batch."""
        reach("apply.record")
        if ends or self._untold:
            ledger.write_applied(self._path, last, self._untold, APPLIED_APP if ends else None)
        for one in self._untold:
            self._numbers[one.table] = max(one.upto, self._numbers.get(one.table, -1))
        self._untold = []
        if ends:
            self._backlog.passed(last.upto)
        reach("apply.recorded")

    def check(self, table: str, reached: int) -> None:
        """Records the change number that a table has reached, if nobody has; looks only when in doubt."""
        if table in self._sure:
            return
        if reached > self._numbers.get(table, -1):
            at, done = self._backlog.holding(reached), self._there(table, reached)
            if at is not None and done is not None:
                ledger.write_applied(self._path, at, [done])
                self._numbers[table] = reached
        self._sure.add(table)

    @property
    def _numbers(self) -> dict[str, int]:
        """Table -> the number that it is recorded to have reached."""
        if self._newest is None:
            self._newest = ledger.newest_applied(self._path)
        return self._newest
