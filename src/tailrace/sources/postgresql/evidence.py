"""Observations of a table in PostgreSQL's catalog, with their time: the facts that identify columns later.

A `Look` is small and is kept with each layout (`change.Relation.evidence`), so that a capture that was
stopped still knows how the catalog was before. Positions are LSNs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class LiveColumn:
    """A row of pg_attribute. `generated`: '' no, s stored, v virtual. `missing`: the text of the value that
    rows older than the column have. A dropped column keeps its attnum and has no name. `stamp`: the row's
    xmin, another one after each change. `physical`: length, by value and alignment of its type."""

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
    """A table's attributes as they were at some moment before the LSN `at`.

    `file`: what changes when the table is rewritten (0: cannot be told); `stamps`: by attnum, from 1 on;
    `began`: how many attributes there were when this file was first seen; `key`: as `LiveTable.key_id`.
    """

    at: int
    file: int
    stamps: tuple[int, ...]
    began: int
    gone: frozenset[int] = frozenset()
    key: int = 0

    @property
    def count(self) -> int:
        """The number of attributes, dropped ones included: the highest attnum."""
        return len(self.stamps)

    def after(self, other: Look | None) -> Look:
        """The same, updated by another look."""
        same = other is not None and self.file == other.file != 0
        return replace(self, began=min(self.began, other.began)) if other and same else self

    def like(self, other: Look) -> bool:
        """Whether nothing has changed between the two."""
        return (self.file, self.stamps, self.key) == (other.file, other.stamps, other.key)


@dataclass(frozen=True)
class XidSnapshot:
    """`pg_current_snapshot()`: which transactions a look sees.

    >>> seen = XidSnapshot.parse("0:104:102")
    >>> [seen.sees(xid) for xid in (101, 102, 103, 104)]
    [True, False, True, False]
    """

    end: int
    running: frozenset[int]

    @staticmethod
    def parse(text: str) -> XidSnapshot:
        """Parsed from its text, `xmin:xmax:xip,...`."""
        _, end, running = text.split(":")
        return XidSnapshot(int(end), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Whether a committed transaction is seen, given the 32 bits of its id that the stream has."""
        behind = (self.end - xid) & 0xFFFFFFFF  # how many ids before the first one not given yet
        return 0 < behind < 1 << 31 and self.end - behind not in self.running


@dataclass(frozen=True)
class LiveTable:
    """The catalog's entry of a table at one moment; no columns if it is gone. `primary_key` and
    `identity_key` (the columns of the replica identity's index): attnums. `key_id`: the oid of the primary
    key's constraint (0: none), whose columns never change; `key_stamp`: its xmin. `listed`: the
    publication has a list of columns. `file`, `at`: as in `Look`."""

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
        """Whether it was read after a transaction."""
        return self.snapshot is None or self.snapshot.sees(xid)

    @property
    def look(self) -> Look:
        """The part of it that is kept."""
        gone = frozenset(c.attnum for c in self.columns if c.dropped)
        stamps = tuple(c.stamp for c in self.columns)
        return Look(self.at, self.file, stamps, len(self.columns), gone, self.key_id)


@dataclass(frozen=True)
class Moment:
    """When a change was made: its transaction's commit LSN and id, the change's own address, and the LSN
    after the transaction if it is the last one that was read."""

    lsn: int
    xid: int
    address: bytes = b""
    end: int | None = None


@dataclass(frozen=True)
class Evidence:
    """What is kept with a layout: where it was announced (`address`; empty: read from the catalog), what is
    known about that moment, and looks at the catalog.

    `exists`: attributes up to this number existed; `newest`: none above it did; `lowest`: the lowest number
    that was given to a column whose attribute is unknown; `columns`: the attributes that are known;
    `key_open`: whether the catalog does not prove yet which primary key the table had.
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
        """As JSON text.

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
        """From `to_text`; empty text is no evidence."""
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
    """The newest look that is certainly from before a commit at that LSN; the last of those of one moment,
    which knows more (`timeline.at_rest`)."""
    return max((one for one in reversed(looks) if one.at <= lsn), key=lambda one: one.at, default=None)
