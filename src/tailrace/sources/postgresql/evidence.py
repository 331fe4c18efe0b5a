"""Observations of a table in PostgreSQL's catalog with their time, which later identify columns.

A `Look` is small and is stored with each layout (`change.Relation.evidence`), so that capture still knows
earlier states of the catalog after a stop. Positions are LSNs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


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
        key: as `LiveTable.key_id`; None in an observation by an earlier release.
    """

    at: int
    file: int
    stamps: tuple[int, ...]
    began: int
    gone: frozenset[int] = frozenset()
    key: int | None = 0

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
            Look(at, file, tuple(stamps), began, frozenset(gone), *(key or [None]))
            for at, file, stamps, began, gone, *key in raw["looks"]
        )
        gone, columns = frozenset(raw["gone"]), frozenset(raw["columns"])
        key_open = raw.get("key_open", False)
        return Evidence(lsn, bytes.fromhex(address), exists, newest, lowest, gone, columns, looks, key_open)


def newest_before(looks: Sequence[Look], lsn: int) -> Look | None:
    """Returns the newest observation that is certainly from before a commit at an LSN.

    Of several from one moment, the last has more information (`timeline.at_rest`).
    """
    return max((one for one in reversed(looks) if one.at <= lsn), key=lambda one: one.at, default=None)
