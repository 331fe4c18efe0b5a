"""The store batches that wait to be applied, and the tables that wait for older ones.

*New* batches are later than the last recorded round: no table has them. A table that was paused, failed or
had no baseline when a round was applied is *late*. Only the names of late tables are kept; their batches are
read from the table `stored` again once the tables are due. So memory is bounded (`ROWS`), however long a
table waits.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from ..model.positions import ChangeNumber
from ..state import ledger
from ..state.ledger import Stored

ROWS = 20_000
"""The approximate number of rows of `stored` in memory: a batch has one, and one for each of its tables."""


def cut_rounds(pending: Sequence[Stored], max_changes: int, max_bytes: int = 1 << 62) -> list[list[Stored]]:
    """Groups store batches, in order, into rounds of at most that many rows and bytes. A round has at least
    one batch; no batch is split."""
    found: list[list[Stored]] = []
    rows = size = 0
    for batch in pending:
        if not found or rows + batch.rows > max_changes or size + batch.size > max_bytes:
            found.append([])
            rows = size = 0
        found[-1].append(batch)
        rows, size = rows + batch.rows, size + batch.size
    return found


class Backlog:
    """The batches that wait. Any thread may call `add` at any time; the rest is for one thread at a time.

    Args:
        path: the `stored` table.
        recorded: the last change number of the last recorded round.

    Attributes:
        recorded: the last recorded change number; `advance` raises it.
        late: for each late table the change number up to which recorded batches may wait. Other tables have
            all recorded batches.
    """

    def __init__(self, path: str, recorded: int) -> None:
        self._path, self._most = path, ROWS
        self.recorded = recorded
        self.late: dict[str, int] = dict(ledger.newest_stored(path, ChangeNumber(recorded)))
        self._lock = threading.Lock()
        self._inbox: list[Stored] = []
        self._room = self._most
        self._unread = True  # `stored` has batches that are neither in the inbox nor in `_new`
        self._new: list[Stored] = []

    def add(self, batch: Stored) -> None:
        """Adds a batch that was written to `stored`. Never waits for the applier."""
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
        """Whether there may be more batches than `take` returned."""
        with self._lock:
            return self._unread

    def take(self) -> list[Stored]:
        """The oldest new batches, in order."""
        if not (self._new and self.unread):  # otherwise there are enough batches
            with self._lock:
                arrived, self._inbox, self._room = self._inbox, [], self._most
                unread, self._unread = self._unread, False
            last = self._new[-1].upto if self._new else self.recorded
            if unread:
                # Later batches go to the inbox, so none is missed.
                try:
                    arrived, unread = ledger.read_waiting(self._path, ChangeNumber(last), most=self._most)
                finally:
                    if unread:
                        with self._lock:
                            self._unread = True
            self._new += [b for b in arrived if b.upto > last]
        return list(self._new)

    def advance(self, end: int) -> None:
        """Notes that rounds are recorded up to a change number."""
        self.recorded = end
        self._new = [b for b in self._new if b.upto > end]

    def add_late(self, table: str, end: int) -> None:
        """Notes that a table is late: batches of it up to `end` may wait."""
        self.late[table] = max(end, self.late.get(table, -1))

    def waiting(self, start: int, tables: Collection[str]) -> list[Stored]:
        """The oldest recorded batches of late tables after the change number `start`, in order, with the
        counts of these tables alone; empty if there are no more."""
        numbers = ChangeNumber(start), ChangeNumber(self.recorded)
        return ledger.read_waiting(self._path, *numbers, tables, most=self._most)[0]

    def holding(self, number: int) -> Stored | None:
        """The batch with a change number; None if `stored` does not have it."""
        found, _ = ledger.read_waiting(self._path, ChangeNumber(number - 1), most=1)
        return found[0] if found else None
