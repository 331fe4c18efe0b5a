"""The records of store and apply batches (tables `stored` and `applied`).

They are written in the same order as the data that they describe, so they are true after any crash. They are
added up and shortened as they grow (`rolling`): readers of single batches get those that are still there,
`totals` has the sums of all.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ..lake import delta as lake
from ..model.positions import ChangeNumber, ChangeSeq, Position, order_key
from . import rolling
from .declarations import APPLIED, STORED
from .rolling import Book, Ledger

_BATCH = ["upto", "change_seq", "position", "commit_time", "table", "counts"]

STORE_APP = "tailrace/store"
"""App id under which change tables, TRACKING and `stored` keep the change number reached."""
APPLIED_APP = "tailrace/applied"
"""App id under which `applied` keeps it."""


@dataclass(frozen=True)
class Stored:
    """One store batch: the last commit in it, and what it added to each table's change table."""

    upto: ChangeNumber
    change_seq: ChangeSeq
    position: Position
    commit_time: dt.datetime
    tables: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Change-table rows of the batch."""
        return sum(c.get("rows", 0) for c in self.tables.values())

    @property
    def size(self) -> int:
        """Size of these rows in bytes, as stored."""
        return sum(c.get("bytes", 0) for c in self.tables.values())


@dataclass(frozen=True)
class AppliedTable:
    """Result of an apply batch in one target (rows), and the target's version after it.

    `version`: None for a target without versions. `upto`: the change number that the target has reached
    (None: that of the batch). Not recorded: `flagged` changes, why the table is `suspended` now (empty: it is
    not), changes by conflict (`apply.rules`).
    """

    table: str
    version: int | None
    inserted: int
    updated: int
    deleted: int
    missing: int
    plan: str
    seconds: float
    upto: ChangeNumber | None = None
    flagged: int = 0
    suspended: str = ""
    conflicts: Mapping[str, int] = field(default_factory=dict)


def write_stored(
    path: str, batch: Stored, relids: Mapping[str, int], after: Mapping[str, int | None] | None = None
) -> None:
    """Records a store batch: one row for the batch (table NULL) and one per table. `after`: the progress that
    its changes were counted from; OvertakenError if another process has recorded some of them since."""
    head = {
        "upto": batch.upto,
        "change_seq": batch.change_seq,
        "position": batch.position,
        "commit_time": batch.commit_time,
        "stored_at": dt.datetime.now(dt.timezone.utc),
    }
    rows = [dict(head, table=None, relid=None, rows=batch.rows, counts="{}")]
    rows += [
        dict(head, table=t, relid=relids[t], rows=c["rows"], counts=json.dumps(dict(c)))
        for t, c in batch.tables.items()
    ]
    found = pa.Table.from_pylist(rows, STORED.schema)
    made = lake.append(path, found, progress={STORE_APP: batch.upto}, after=after)
    _folded(path, STORED, made)


def read_stored(
    path: str, after: ChangeNumber | None = None, tables: Collection[str] | None = None
) -> list[Stored]:
    """Store batches later than a change number, oldest first, as far as they are kept: a table's part of a
    batch is, until it is applied (or will never be) and older than `maintenance.keep_ledger`; the
    newest part of each table always is. `tables`: with these tables' parts alone, where there are some."""
    return _batches(Ledger(path, STORED).batches(_BATCH, after, tables=tables))


def read_waiting(
    path: str,
    after: ChangeNumber | None,
    upto: ChangeNumber | None = None,
    tables: Collection[str] | None = None,
    *,
    most: int,
) -> tuple[list[Stored], bool]:
    """The oldest store batches with change numbers in (after, upto], and whether there are later ones.

    Args:
        tables: with these tables' counts alone, and without batches that have none of them.
        most: about the number of rows of `stored` to read, which bounds the memory; at least one batch.
    """
    ledger, more = Ledger(path, STORED), False
    found = np.sort(ledger.batches(["upto"], after, upto, tables)["upto"].to_numpy())
    if len(found) > most:
        whole = found[found < found[most]]
        upto = ChangeNumber(int(whole[-1] if len(whole) else found[0]))
        more = upto < int(found[-1])
    return _batches(ledger.batches(_BATCH, after, upto, tables)), more


def newest_stored(path: str, upto: ChangeNumber) -> dict[str, ChangeNumber]:
    """Per table, the number of the newest store batch up to `upto` that has changes of it, if that batch is
    kept or is the newest of all."""
    ledger = Ledger(path, STORED)
    found = {r["table"]: r["upto"] for r in ledger.totals(["upto"]).to_pylist() if r["table"] is not None}
    if later := [t for t, n in found.items() if n > upto]:
        rows = ledger.batches(["upto", "table"], upto=upto, tables=later).group_by("table")
        found = {t: n for t, n in found.items() if n <= upto}
        found |= {r["table"]: r["upto_max"] for r in rows.aggregate([("upto", "max")]).to_pylist()}
    return found


def write_applied(path: str, upto: Stored, tables: Iterable[AppliedTable], app: str | None = None) -> None:
    """Records an apply batch: one row for the batch (table NULL) and one per target touched."""
    now = dt.datetime.now(dt.timezone.utc)
    # One process at a time writes records, each in its own commit: versions count them.
    number = order_key(lake.version(path)) + 1
    head = {"upto": upto.upto, "change_seq": upto.change_seq, "position": upto.position, "applied_at": now}
    head |= {"number": number, "committed_at": upto.commit_time}
    rows: list[dict[str, object]] = [dict(head, table=None)]
    for t in tables:
        whole = t.upto in (None, upto.upto)
        at = upto.commit_time if whole else None
        rows.append(head | vars(t) | {"upto": upto.upto if whole else t.upto, "committed_at": at})
    made = lake.append(
        path, pa.Table.from_pylist(rows, APPLIED.schema), progress={app: upto.upto} if app else {}
    )
    _folded(path, APPLIED, made)


def read_applied(path: str, after: ChangeNumber | None = None) -> list[dict[str, Any]]:
    """Rows of the applied table later than a change number, oldest first, as far as they are kept: each for
    `maintenance.keep_ledger`."""
    names = APPLIED.columns.names
    rows: list[dict[str, Any]] = Ledger(path, APPLIED).batches(names, after).select(names).to_pylist()
    return sorted(rows, key=lambda r: (r["upto"], r["table"] or ""))


def newest_applied(path: str) -> dict[str, ChangeNumber]:
    """Per table, the change number that its target has reached according to its last record."""
    rows = Ledger(path, APPLIED).totals(["upto"]).to_pylist()
    return {r["table"]: r["upto"] for r in rows if r["table"] is not None}


def _batches(rows: pa.Table) -> list[Stored]:
    """Rows of `stored` as batches, oldest first; each row contains what its batch has in common."""
    batches: dict[int, Stored] = {}
    tables: dict[int, dict[str, Mapping[str, int]]] = {}
    for r in rows.sort_by([("upto", "ascending"), ("table", "ascending")]).to_pylist():
        upto = r["upto"]
        if upto not in batches:
            tables[upto] = {}
            batches[upto] = Stored(upto, r["change_seq"], r["position"], r["commit_time"], tables[upto])
        if r["table"] is not None:
            tables[upto][r["table"]] = json.loads(r["counts"])
    return list(batches.values())


def _folded(path: str, book: Book, version: int | None) -> None:
    if version is not None and version % rolling.FOLD_EVERY == 0:
        rolling.fold(path, book)
