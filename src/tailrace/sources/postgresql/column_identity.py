"""Identifies the catalog attribute of each column of a Relation message: proved, or unknown.

A message has names and types, but no attribute numbers, and the catalog is read later than the change was
made. So the catalog is observed once a second (`Timeline`), and each change is between two observations
(`Look`). The closer these are, the more they prove. They are stored with each layout
(`change.Relation.evidence`), so that capture still knows them after a stop. These facts hold in between,
whatever DDL ran:

- Numbers are assigned in ascending order and never reused, and a message lists its columns by ascending
  number.
- A dropped attribute stays dropped, and keeps its number and the physical form of its type.
- An attribute whose row in pg_attribute is the same (`xmin`) in an observation before the change and in one
  after it had exactly that state at the change.
- While the table's file is the same, no type got another physical form (length, by-value flag, alignment),
  which would have rewritten the table. A value for older rows (`attmissingval`) proves that the table was not
  rewritten since the column was added.

Names prove nothing: a column may have been renamed, or dropped and created again, in between. Positions are
LSNs.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...errors import ConnectionLostError
from ...model.change import Relation
from ...wire.pgmessages import RelationColumn


@dataclass(frozen=True)
class LiveColumn:
    """A row of pg_attribute.

    Attributes:
        missing: the text of the value of rows older than the column.
        generated: '' no, s stored, v virtual.
        dropped: whether it was dropped; then it keeps its attnum and has no name.
        stamp: the row's xmin, which differs after each change.
        physical: length, by-value flag and alignment of its type.
    """

    attnum: int
    name: str
    type_oid: int
    typmod: int
    missing: str | None = None
    generated: str = ""
    dropped: bool = False
    stamp: int = 0
    physical: str = ""


@dataclass(frozen=True)
class Look:
    """A table's attributes at some moment before the LSN `at`.

    Attributes:
        file: a number that changes when the table is rewritten; 0 if unknown.
        stamps: the stamps by attnum, from 1 on.
        began: the number of attributes when this file was first seen.
        gone: the dropped attributes.
        key: as `LiveTable.key_id`.
    """

    at: int
    file: int
    stamps: tuple[int, ...]
    began: int
    gone: frozenset[int] = frozenset()
    key: int = 0

    @property
    def count(self) -> int:
        """The number of attributes including dropped ones: the highest attnum."""
        return len(self.stamps)

    def after(self, other: Look | None) -> Look:
        """Returns this observation, updated by an earlier one."""
        same = other is not None and self.file == other.file != 0
        return replace(self, began=min(self.began, other.began)) if other and same else self

    def like(self, other: Look) -> bool:
        """Returns whether nothing has changed between two observations."""
        return (self.file, self.stamps, self.key) == (other.file, other.stamps, other.key)


@dataclass(frozen=True)
class XidSnapshot:
    """`pg_current_snapshot()`: which transactions an observation sees.

    >>> seen = XidSnapshot.parse("0:104:102")
    >>> [seen.sees(xid) for xid in (101, 102, 103, 104)]
    [True, False, True, False]
    """

    end: int
    running: frozenset[int]

    @staticmethod
    def parse(text: str) -> XidSnapshot:
        """Parses the text `xmin:xmax:xip,...`."""
        _, end, running = text.split(":")
        return XidSnapshot(int(end), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Returns whether a committed transaction is visible, given the 32 bits of its id in the stream."""
        behind = (self.end - xid) & 0xFFFFFFFF  # distance to the first id that is not assigned yet
        return 0 < behind < 1 << 31 and self.end - behind not in self.running


@dataclass(frozen=True)
class LiveTable:
    """The catalog's entry of a table at one moment; no columns if it does not exist.

    Attributes:
        primary_key: its attnums.
        identity_key: the attnums of the replica identity's index.
        listed: whether the publication has a list of columns.
        file, at: as in `Look`.
        snapshot: the transactions that the entry sees.
        key_id: the oid of the primary key's constraint, whose columns never change; 0 without one.
        key_stamp: its xmin.
    """

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[LiveColumn, ...]
    primary_key: frozenset[int] = frozenset()
    identity_key: frozenset[int] = frozenset()
    listed: bool = False
    file: int = 0
    at: int = 0
    snapshot: XidSnapshot | None = None
    key_id: int = 0
    key_stamp: int = 0

    def sees(self, xid: int) -> bool:
        """Returns whether it was read after a transaction."""
        return self.snapshot is None or self.snapshot.sees(xid)

    @property
    def look(self) -> Look:
        """The part that is stored."""
        gone = frozenset(c.attnum for c in self.columns if c.dropped)
        stamps = tuple(c.stamp for c in self.columns)
        return Look(self.at, self.file, stamps, len(self.columns), gone, self.key_id)


@dataclass(frozen=True)
class Bracket:
    """The catalog around a change: an observation from before it, if there is one, and the table
    afterwards."""

    before: Look | None
    after: LiveTable


@dataclass(frozen=True)
class Moment:
    """The time of a change.

    Attributes:
        lsn, xid: commit LSN and id of its transaction.
        address: the change's address.
        end: the LSN after the transaction, if it is the last one that was read.
    """

    lsn: int
    xid: int
    address: bytes = b""
    end: int | None = None


@dataclass(frozen=True)
class Evidence:
    """Facts that are stored with a layout.

    Attributes:
        lsn, address: where it was announced; `address` is empty if it was read from the catalog.
        exists: attributes up to this number existed.
        newest: no attribute above this number existed.
        lowest: the lowest number that was assigned to a column whose attribute is unknown.
        gone: attributes that were dropped.
        columns: the known attributes.
        looks: observations of the catalog.
        key_open: whether the catalog does not prove yet which primary key the table had.
    """

    lsn: int = 0
    address: bytes = b""
    exists: int = 0
    newest: int = 0
    lowest: int = 0
    gone: frozenset[int] = frozenset()
    columns: frozenset[int] = frozenset()
    looks: tuple[Look, ...] = field(default=())
    key_open: bool = False

    def to_text(self) -> str:
        """Returns JSON text.

        >>> one = Evidence(7, b"a", 3, 3, -1, frozenset({2}), frozenset({1, 3}), (Look(6, 1, (5, 5, 9), 2),))
        >>> Evidence.parse(one.to_text()) == one
        True
        """
        return json.dumps(
            {
                "at": [self.lsn, self.address.hex(), self.exists, self.newest, self.lowest],
                "gone": sorted(self.gone),
                "columns": sorted(self.columns),
                "looks": [[x.at, x.file, x.stamps, x.began, sorted(x.gone), x.key] for x in self.looks],
                "key_open": self.key_open,
            }
        )

    @staticmethod
    def parse(text: str) -> Evidence:
        """Parses the result of `to_text`; empty text is no evidence."""
        if not text:
            return Evidence()
        raw = json.loads(text)
        lsn, address, exists, newest, lowest = raw["at"]
        looks = tuple(
            Look(at, file, tuple(stamps), began, frozenset(gone), key)
            for at, file, stamps, began, gone, key in raw["looks"]
        )
        gone, columns = frozenset(raw["gone"]), frozenset(raw["columns"])
        key_open = raw.get("key_open", False)
        return Evidence(lsn, bytes.fromhex(address), exists, newest, lowest, gone, columns, looks, key_open)


def newest_before(looks: Sequence[Look], lsn: int) -> Look | None:
    """Returns the newest observation that is certainly from before a commit at an LSN.

    Of several from one moment, the last has more information (`at_rest`).
    """
    return max((one for one in reversed(looks) if one.at <= lsn), key=lambda one: one.at, default=None)


@dataclass(frozen=True)
class Identified:
    """The identified columns of a message.

    Attributes:
        numbers: each column's attribute number; None if unknown.
        exists: attributes up to this number existed.
        gone: attributes that had been dropped by then.
    """

    numbers: tuple[int | None, ...]
    exists: int
    gone: frozenset[int]


@dataclass(frozen=True)
class _Slot:
    """The possible columns of an attribute, one bit per column of the message, and whether it must be one of
    them."""

    may: int
    must: bool


def identify(
    columns: Sequence[RelationColumn],
    forms: Mapping[int, str],
    before: Look | None,
    after: LiveTable,
    earlier: Evidence | None = None,
) -> Identified:
    """Identifies the attributes of a Relation message's columns.

    Args:
        columns: the message's columns.
        forms: physical form by type oid, for existing types.
        before: an observation of the catalog from before the change, if there is one.
        after: the catalog after it.
        earlier: the facts known at an earlier change of the table.
    """
    exists = max(before.count if before else 0, earlier.exists if earlier else 0)
    gone = (before.gone if before else frozenset()) | (earlier.gone if earlier else frozenset())
    slots = _slots(columns, forms, before, after, gone)
    possible, least = _possible(slots, len(columns), exists)
    numbers: list[int | None] = [n.bit_length() if n and n & (n - 1) == 0 else None for n in possible]
    if not all(possible):  # the assumptions do not hold: only attributes equal before and after are certain
        least = exists
        sure = {c.name: c.attnum for c in after.columns if _same(c, before) and not c.dropped}
        numbers = [sure.get(c.name) for c in columns]
    else:
        seen = 0
        for one in possible:
            seen |= one
        known = earlier.columns if earlier else frozenset()
        dropped = {c.attnum for c in after.columns if c.dropped}
        gone |= {n for n in known & dropped if not seen >> (n - 1) & 1} if not after.listed else frozenset()
    return Identified(tuple(numbers), max([least, *(n for n in numbers if n)]), gone)


def _same(column: LiveColumn, before: Look | None) -> bool:
    """Returns whether an attribute is the same as in the earlier observation."""
    return (
        before is not None
        and column.attnum <= before.count
        and before.stamps[column.attnum - 1] == column.stamp
    )


def _slots(
    columns: Sequence[RelationColumn],
    forms: Mapping[int, str],
    before: Look | None,
    after: LiveTable,
    gone: frozenset[int],
) -> list[_Slot]:
    every = (1 << len(columns)) - 1
    places = {c.name: 1 << k for k, c in enumerate(columns)}
    of_form: dict[str, int] = {}
    unknown = 0  # columns whose type does not exist any more
    for k, c in enumerate(columns):
        if c.type_oid in forms:
            of_form[forms[c.type_oid]] = of_form.get(forms[c.type_oid], 0) | 1 << k
        else:
            unknown |= 1 << k
    kept = before is not None and before.file == after.file != 0
    slots = []
    for one in after.columns:
        fits = of_form.get(one.physical, 0) | unknown if kept or one.missing is not None else every
        if one.attnum in gone:
            slots.append(_Slot(0, must=False))
        elif _same(one, before):
            place = 0 if one.dropped else places.get(one.name, 0)
            slots.append(_Slot(place, must=bool(place)))
        else:
            # A column that is generated, or not in the publication's list, may be missing in the message.
            hidden = after.listed or bool(one.generated)
            slots.append(_Slot(fits, must=not one.dropped and not hidden))
    return slots


def _possible(slots: Sequence[_Slot], count: int, exists: int) -> tuple[list[int], int]:
    """Returns for each column its possible attributes (bit n - 1 for number n), and the minimum number of
    existing attributes.

    All ways to assign a message's columns to attributes in order are considered. A state is the number of
    assigned columns; a set of states is the bits of an integer.
    """
    total = len(slots)
    forward = [1]
    for slot in slots:
        here = forward[-1]
        forward.append((here & slot.may) << 1 | (0 if slot.must else here))
    end = 1 << count
    backward = [0] * total + [end]
    for n in range(total, 0, -1):
        slot, later = slots[n - 1], backward[n]
        not_yet = end if n > exists else 0  # neither this attribute nor any after it existed
        backward[n - 1] = (later >> 1) & slot.may | (0 if slot.must else later) | not_yet
    possible = [0] * count
    for n in range(1, total + 1):
        given = forward[n - 1] & slots[n - 1].may & backward[n] >> 1
        while given:
            low = given & -given
            possible[low.bit_length() - 1] |= 1 << (n - 1)
            given ^= low
    least = next((n for n in range(exists, total) if forward[n] & end), total)
    return possible, least


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

    >>> from tailrace.sources.postgresql.column_identity import LiveColumn
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
