"""The record of applied changes (control table `applied`), with a row for every commit to a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..lake.failpoints import reach
from ..model.positions import order_key
from ..state import ledger
from ..state.ledger import APPLIED_APP, AppliedTable, Stored
from .backlog import Backlog


class ApplyRecord:
    """Writes the record, and adds missing rows: a process may die, or lose its connection, between a commit
    and its record.

    Args:
        path: the `applied` table.
        backlog: gets the progress of the record.
        applied_before: returns the row for a target that has the changes of a table up to exactly that
            number; otherwise None.
    """

    def __init__(
        self, path: str, backlog: Backlog, applied_before: Callable[[str, int], AppliedTable | None]
    ) -> None:
        self._path, self._backlog, self._applied_before = path, backlog, applied_before
        self._newest: dict[str, int] | None = None
        self._checked: set[str] = set()
        self._pending: list[AppliedTable] = []

    def note(self, done: Iterable[AppliedTable]) -> None:
        """Adds commits to the next `write`."""
        self._pending += done

    def doubt(self, table: str) -> None:
        """Notes that a target may have commits that were not noted."""
        self._checked.discard(table)

    def write(self, last: Stored, *, newest: bool) -> None:
        """Records the commits that were noted; with `newest`, also that everything up to the end of the store
        batch `last` is applied."""
        reach("apply.record")
        if newest or self._pending:
            ledger.write_applied(self._path, last, self._pending, APPLIED_APP if newest else None)
        for one in self._pending:
            self._numbers[one.table] = max(order_key(one.upto), self._numbers.get(one.table, -1))
        self._pending = []
        if newest:
            self._backlog.advance(last.upto)
        reach("apply.recorded")

    def check(self, table: str, number: int | None) -> None:
        """Adds a missing row for the progress of a table. Checks each table once, until `doubt`."""
        if table in self._checked:
            return
        if number is not None and number > self._numbers.get(table, -1):
            stored, done = self._backlog.holding(number), self._applied_before(table, number)
            if stored is not None and done is not None:
                ledger.write_applied(self._path, stored, [done])
                self._numbers[table] = number
        self._checked.add(table)

    @property
    def _numbers(self) -> dict[str, int]:
        """The recorded change number of each table."""
        if self._newest is None:
            self._newest = dict[str, int](ledger.newest_applied(self._path))
        return self._newest
