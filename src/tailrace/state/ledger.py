"""The control tables: what was stored, what was applied, which baselines were taken.

Small Delta tables under `<home>/control`, written in the same order as the data they speak of, so what they
say is true after any crash. Positions are 40 hex digits (LOGADDR), numbers are change numbers. `stored` and
`applied` are added up and shortened as they grow (`rolling`): readers of single batches get those that are
still there, `totals` what all of them come to.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ..lake import delta as lake
from ..lake.failpoints import reach
from ..model.change import Relation
from . import rolling
from .rolling import Book, Ledger

STORED_SCHEMA = pa.schema(
    [
        ("upto", pa.int64()), ("change_seq", pa.string()), ("position", pa.string()),
        ("commit_time", pa.timestamp("us", "UTC")), ("table", pa.string()), ("relid", pa.int64()),
        ("rows", pa.int64()), ("counts", pa.string()), ("stored_at", pa.timestamp("us", "UTC")),
        *rolling.COLUMNS,
    ]
)  # fmt: skip
APPLIED_SCHEMA = pa.schema(
    [
        ("upto", pa.int64()), ("change_seq", pa.string()), ("position", pa.string()),
        ("applied_at", pa.timestamp("us", "UTC")), ("table", pa.string()), ("version", pa.int64()),
        ("inserted", pa.int64()), ("updated", pa.int64()), ("deleted", pa.int64()), ("missing", pa.int64()),
        ("plan", pa.string()), ("seconds", pa.float64()), ("committed_at", pa.timestamp("us", "UTC")),
        ("number", pa.int64()), *rolling.COLUMNS,
    ]
)  # fmt: skip
BASELINES_SCHEMA = pa.schema(
    [
        ("table", pa.string()), ("relid", pa.int64()), ("position", pa.string()), ("rows", pa.int64()),
        ("version", pa.int64()), ("finished_at", pa.timestamp("us", "UTC")), ("seconds", pa.float64()),
        ("layout", pa.string()), ("number", pa.int64()), ("order", pa.int64()), ("after", pa.int64()),
        ("window", pa.string()), ("closes", pa.int64()),
    ]
)  # fmt: skip

STORED = Book(STORED_SCHEMA, ("rows",), ("upto",), "upto", "stored_at")
"""`gone`: rows of the table's batches up to this change number were removed."""
APPLIED = Book(
    APPLIED_SCHEMA,
    ("inserted", "updated", "deleted", "missing"),
    ("number", "upto"),
    "applied_at",
    "applied_at",
)
"""`number` grows with each record; `gone`: rows were removed up to this time (microseconds since 1970)."""
_BATCH = ["upto", "change_seq", "position", "commit_time", "table", "counts"]

STORE_APP = "tailrace/store"
"""App id under which change tables, TRACKING and `stored` keep the change number reached."""
APPLIED_APP = "tailrace/applied"
"""App id under which `applied` keeps it."""


@dataclass(frozen=True)
class Stored:
    """One store batch: the last commit in it, and what it added to each table's change table."""

    upto: int
    change_seq: str
    position: str
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
    """What one apply batch did to one target (rows), and the target's version after it.

    `upto`: the change number that the target has reached (-1: that of the batch). Not recorded: `flagged`
    changes, why the table is `suspended` now (empty: it is not), changes by conflict (`apply.rules`).
    """

    table: str
    version: int
    inserted: int
    updated: int
    deleted: int
    missing: int
    plan: str
    seconds: float
    upto: int = -1
    flagged: int = 0
    suspended: str = ""
    conflicts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """A baseline: changes at or after `position` count on top of its rows; `version` is the target's.

    Attributes:
        number: 1, 2, 3, ... of its table.
        order: the newest order of its table (`control.tables`) when it began; 0: there was none.
        after: the change number that LOG had reached when it began: all at or before it is in the rows.
        window: `exact`, all rows are as of `position`; `open`, they were read while the table was written to,
            so some changes are in them already.
        closes: `open` only: changes up to this change number may be in the rows, none later is; 0 as long as
            that is not known, and apply waits.
    """

    table: str
    relation: Relation
    position: str
    rows: int
    version: int
    finished_at: dt.datetime
    seconds: float
    number: int = 1
    order: int = 0
    after: int = -1
    window: str = "exact"
    closes: int = 0

    @property
    def done(self) -> bool:
        """Whether changes may be applied on top of it."""
        return self.window == "exact" or self.closes > 0


def write_stored(path: str, batch: Stored, relids: Mapping[str, int], after: int | None = None) -> None:
    """Records a store batch: one row for the batch (table NULL) and one per table. `after`: the number that
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
    follows = None if after is None else {STORE_APP: after}
    found = pa.Table.from_pylist(rows, STORED_SCHEMA)
    made = lake.append(path, found, progress={STORE_APP: batch.upto}, after=follows)
    _folded(path, STORED, made)


def read_stored(path: str, after: int = -1, tables: Collection[str] | None = None) -> list[Stored]:
    """Store batches later than a change number, oldest first, as far as they are kept: a table's part of a
    batch is, until it is applied (or nobody will apply it) and older than `maintenance.keep_ledger`; the
    newest part of each table always is. `tables`: with these tables' parts alone, where there are some."""
    return _batches(Ledger(path, STORED).batches(_BATCH, after, tables=tables))


def read_waiting(
    path: str, after: int, upto: int | None = None, tables: Collection[str] | None = None, *, most: int
) -> tuple[list[Stored], bool]:
    """The oldest store batches with change numbers in (after, upto], and whether there are later ones.

    Args:
        tables: with these tables' counts alone, and without batches that have none of them.
        most: about so many rows of `stored` are read, which bounds the memory it takes; one batch at least.
    """
    ledger, more = Ledger(path, STORED), False
    upto = rolling.LAST if upto is None else upto
    found = np.sort(ledger.batches(["upto"], after, upto, tables)["upto"].to_numpy())
    if len(found) > most:
        whole = found[found < found[most]]
        upto = int(whole[-1] if len(whole) else found[0])
        more = upto < int(found[-1])
    return _batches(ledger.batches(_BATCH, after, upto, tables)), more


def newest_stored(path: str, upto: int) -> dict[str, int]:
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
    number = lake.version(path) + 1
    head = {"upto": upto.upto, "change_seq": upto.change_seq, "position": upto.position, "applied_at": now}
    head |= {"number": number, "committed_at": upto.commit_time}
    rows: list[dict[str, object]] = [dict(head, table=None)]
    for t in tables:
        whole = t.upto in (-1, upto.upto)
        at = upto.commit_time if whole else None
        rows.append(head | vars(t) | {"upto": upto.upto if whole else t.upto, "committed_at": at})
    made = lake.append(
        path, pa.Table.from_pylist(rows, APPLIED_SCHEMA), progress={app: upto.upto} if app else {}
    )
    _folded(path, APPLIED, made)


def read_applied(path: str, after: int = -1) -> list[dict[str, Any]]:
    """Rows of the applied table later than a change number, oldest first, as far as they are kept: each for
    `maintenance.keep_ledger`."""
    names = [n for n in APPLIED_SCHEMA.names if n not in ("kind", "gone")]
    rows: list[dict[str, Any]] = Ledger(path, APPLIED).batches(names, after).select(names).to_pylist()
    return sorted(rows, key=lambda r: (r["upto"], r["table"] or ""))


def newest_applied(path: str) -> dict[str, int]:
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


def write_baseline(path: str, *done: Baseline) -> None:
    """Records baselines whose rows are in their targets, in one commit; one with an open window again when it
    closes."""
    rows = []
    for one in done:
        row = {k: v for k, v in vars(one).items() if k != "relation"}
        rows.append(row | {"relid": one.relation.relid, "layout": one.relation.to_json()})
    reach("baselines.record")
    lake.append(path, pa.Table.from_pylist(rows, BASELINES_SCHEMA))


def read_baselines(path: str) -> dict[str, Baseline]:
    """The newest baseline of each table on top of which changes may be applied."""
    return {one.table: one for one in _baselines(path) if one.done}


def all_baselines(path: str) -> list[Baseline]:
    """All baselines that are still recorded, in order; for one with an open window, the closed record comes
    last."""
    return _baselines(path)


def read_open(path: str) -> dict[str, Baseline]:
    """Per table, the newest baseline if its rows are in the target and its window is still open."""
    newest = {one.table: one for one in _baselines(path)}
    return {table: one for table, one in newest.items() if not one.done}


def baseline_numbers(path: str) -> dict[str, int]:
    """The number of the newest baseline of each table whose rows are in the target."""
    return {one.table: one.number for one in _baselines(path)}


@lru_cache(4096)
def _layout(text: str) -> Relation:
    return Relation.from_json(text)


def _baselines(path: str) -> list[Baseline]:
    """All baselines, in order; for one with an open window, the closed record comes last."""
    found = []
    for r in lake.read(path).to_pylist() if lake.exists(path) else []:
        relation = _layout(r["layout"])
        number, order, after = r.get("number") or 1, r.get("order") or 0, r.get("after")
        window = (r.get("window") or "exact", r.get("closes") or 0)
        found.append(
            Baseline(
                r["table"], relation, r["position"], r["rows"], r["version"], r["finished_at"], r["seconds"],
                number, order, -1 if after is None else after, *window,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.number, one.closes, one.finished_at))
