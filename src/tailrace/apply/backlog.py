"""Which store batches wait to be applied, and to which tables.

The *front* are the batches later than the last recorded slice: they are new to every table. A table that was
paused, failed or had no baseline when the front passed is *behind*. Of those tables only the names are kept;
their batches are read from the ledger again once they are ready. So what is in memory has a bound (`ROWS`),
however long a table waits.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from ..model.positions import ChangeNumber
from ..state import ledger
from ..state.ledger import Stored

ROWS = 20_000
"""About so many rows of `stored` are in memory at a time: a batch has one, and one for each of its tables."""


class Backlog:
    """The batches that wait. `add` may be called by any thread at any time; all else by one thread at a time.

    Args:
        path: the `stored` table.
        recorded: the number of the last recorded slice.

    Attributes:
        recorded: the same, as it moves on (`passed`).
        behind: table -> the number up to which batches of it may wait, of those that are recorded. A table
            that is not in it lacks none of them.
    """

    def __init__(self, path: str, recorded: int) -> None:
        self._path, self._most = path, ROWS
        self.recorded = recorded
        self.behind: dict[str, int] = dict(ledger.newest_stored(path, ChangeNumber(recorded)))
        self._lock = threading.Lock()
        self._inbox: list[Stored] = []
        self._room = self._most
        self._unread = True  # the ledger has batches that are neither in the inbox nor in the front
        self._front: list[Stored] = []

    def add(self, batch: Stored) -> None:
        """Tells of a batch that has been written to the ledger. Never waits for whoever applies."""
        with self._lock:
            self._room -= 1 + len(batch.tables)
            if self._room < 0:
                self._unread = True
            if self._unread:
                self._inbox.clear()
            else:
                self._inbox.append(batch)

    @property
    def unread(self) -> bool:
        """Whether there may be more batches than `take` gave."""
        with self._lock:
            return self._unread

    def take(self) -> list[Stored]:
        """The oldest batches of the front, in order."""
        if not (self._front and self.unread):  # else there is enough to do
            with self._lock:
                come, self._inbox, self._room = self._inbox, [], self._most
                unread, self._unread = self._unread, False
            last = self._front[-1].upto if self._front else self.recorded
            if unread:
                # What comes from here on is in the inbox: nothing is missed in between.
                try:
                    come, unread = ledger.read_waiting(self._path, ChangeNumber(last), most=self._most)
                finally:
                    if unread:
                        with self._lock:
                            self._unread = True
            self._front += [b for b in come if b.upto > last]
        return list(self._front)

    def passed(self, upto: int) -> None:
        """Notes that the front is recorded up to a batch."""
        self.recorded = upto
        self._front = [b for b in self._front if b.upto > upto]

    def waits(self, table: str, upto: int) -> None:
        """Notes that a table is behind: batches of it up to `upto` may wait."""
        self.behind[table] = max(upto, self.behind.get(table, -1))

    def window(self, after: int, tables: Collection[str]) -> list[Stored]:
        """The oldest recorded batches later than `after` of tables that are behind, in order, with the counts
        of these tables alone; none: there are no more."""
        after, upto = ChangeNumber(after), ChangeNumber(self.recorded)
        return ledger.read_waiting(self._path, after, upto, tables, most=self._most)[0]

    def holding(self, number: int) -> Stored | None:
        """The batch that holds a change number; None when the ledger does not have it."""
        found, _ = ledger.read_waiting(self._path, ChangeNumber(number - 1), most=1)
        return found[0] if found else None
