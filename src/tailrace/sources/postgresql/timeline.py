"""A source's catalog over time: reads its tables repeatedly, so that each change is between two observations.

The closer these are, the more is proved about the layout of a change. Published tables are read once a second
(numbers only, in one query). They are read completely if something changed, or for a Relation message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...errors import ConnectionLostError
from ...model.change import Relation
from .evidence import Evidence, LiveTable, Look, Moment, newest_before
from .layout import Bracket

EVERY_S = 1.0
SMALLEST_DDL = 128
"""Bytes of log: no DDL that affects columns writes less, because a row of pg_attribute alone is longer."""
SEEN_S = 20.0
"""Seconds until a transaction in the log is visible to others; longer with a synchronous standby."""
OPEN = -1
"""The stamp of an attribute, or the key, that may have been different."""
_KEPT = 64


class Timeline:
    """Observes the tables of one stream.

    Args:
        read: returns a table's current catalog entry.
        looks: returns the current observations of existing tables.
    """

    def __init__(
        self, read: Callable[[int], LiveTable], looks: Callable[[Sequence[int]], Mapping[int, Look]]
    ) -> None:
        self._read, self._look = read, looks
        self._looks: dict[int, deque[Look]] = {}
        self._tables: dict[int, deque[LiveTable]] = {}
        self._due = 0.0

    def begin(self, known: Sequence[Relation]) -> None:
        """Starts with the observations that are stored with the newest layouts."""
        for one in known:
            kept = Evidence.parse(one.evidence).looks
            self._looks[one.relid] = deque([*kept, *self._looks.get(one.relid, ())], _KEPT)

    def follow(self, relids: Iterable[int]) -> None:
        """Adds tables to observe."""
        for relid in relids:
            if relid not in self._looks:
                self._looks[relid], self._due = deque(maxlen=_KEPT), 0.0
        self.look()

    def look(self) -> None:
        """Reads all tables, at most once a second."""
        if not self._looks or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY_S
        for relid, now in self._look(list(self._looks)).items():
            looks = self._looks[relid]
            if not looks or not now.like(looks[-1]):
                self._table(relid)

    def around(self, relid: int, moment: Moment) -> Bracket:
        """Returns the catalog of a table before and after a change.

        Raises:
            ConnectionLostError: the change's transaction is not visible yet.
        """
        tables = self._tables.setdefault(relid, deque(maxlen=_KEPT))
        after = next((one for one in tables if one.sees(moment.xid)), None) or self._since(relid, moment)
        before = newest_before(self._looks[relid], moment.lsn)
        if moment.end is not None and after.columns and after.at - moment.end < SMALLEST_DDL:
            before = at_rest(before, after, moment.xid)
        return Bracket(before, after)

    def _since(self, relid: int, moment: Moment) -> LiveTable:
        end = time.monotonic() + SEEN_S
        while not (found := self._table(relid)).sees(moment.xid):
            if time.monotonic() > end:
                raise ConnectionLostError(
                    f"transaction {moment.xid} is in the log, but the server does not show it yet",
                    where=f"table {relid}",
                    hint="a synchronous standby that does not answer delays it; it will be retried",
                )
            time.sleep(0.01)
        return found

    def _table(self, relid: int) -> LiveTable:
        """Reads a table, and stores it if it differs from the last observation."""
        found = self._read(relid)
        looks = self._looks.setdefault(relid, deque(maxlen=_KEPT))
        tables = self._tables.setdefault(relid, deque(maxlen=_KEPT))
        if not looks or not found.look.like(looks[-1]):
            looks.append(found.look.after(looks[-1] if looks else None))
            tables.append(found)
        elif not tables:
            tables.append(found)
        return found


def at_rest(before: Look | None, after: LiveTable, xid: int) -> Look:
    """Returns the state that a transaction found, if no DDL followed it.

    Changes of transactions that began before it are unchanged since. Its changes, and those of its
    subtransactions, are left open.

    >>> from tailrace.sources.postgresql.evidence import LiveColumn
    >>> columns = (LiveColumn(1, "id", 23, -1, stamp=700), LiveColumn(2, "a", 25, -1, stamp=702))
    >>> at_rest(None, LiveTable(1, "s", "t", "d", columns), 701).stamps
    (700,)
    """
    old = {c.attnum: c for c in after.columns if _earlier(c.stamp, xid)}
    count = max([before.count if before else 0, *old])
    stamps = tuple(old[n].stamp if n in old else OPEN for n in range(1, count + 1))
    key = after.key_id if _earlier(after.key_stamp, xid) else before.key if before else OPEN
    gone = frozenset(n for n, c in old.items() if c.dropped) | (before.gone if before else frozenset())
    file, began = (before.file, before.began) if before else (0, count)
    return Look(after.at, file, stamps, began, gone, key)


def _earlier(stamp: int, xid: int) -> bool:
    """Returns whether a catalog row was written by a transaction that began before another one; stamp 0 is no
    row."""
    return bool(stamp) and 0 < (xid - stamp) & 0xFFFFFFFF < 1 << 31
