"""The control tables: what was stored, what was applied, which baselines were taken.

Small Delta tables under `<home>/control`, written in the same order as the data they speak of, so what they
say is true after any crash. Positions are 40 hex digits (LOGADDR), numbers are change numbers.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from .. import lake
from ..change import Relation

STORED_SCHEMA = pa.schema(
    [
        ("upto", pa.int64()), ("change_seq", pa.string()), ("position", pa.string()),
        ("commit_time", pa.timestamp("us", "UTC")), ("table", pa.string()), ("relid", pa.int64()),
        ("rows", pa.int64()), ("counts", pa.string()),
    ]
)  # fmt: skip
APPLIED_SCHEMA = pa.schema(
    [
        ("upto", pa.int64()), ("change_seq", pa.string()), ("position", pa.string()),
        ("applied_at", pa.timestamp("us", "UTC")), ("table", pa.string()), ("version", pa.int64()),
        ("inserted", pa.int64()), ("updated", pa.int64()), ("deleted", pa.int64()), ("missing", pa.int64()),
        ("plan", pa.string()), ("seconds", pa.float64()),
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

STORE_APP = "tailrace/store"
"""App id under which change tables, TRACKING and `stored` keep the change number reached."""


@dataclass(frozen=True)
class Stored:
    """One store batch: the last commit in it, and what it put into each table's change table."""

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
        """Bytes of these rows, as they are stored."""
        return sum(c.get("bytes", 0) for c in self.tables.values())


@dataclass(frozen=True)
class AppliedTable:
    """What one apply batch did to one target (rows), and the target's version after it.

    `upto`: the change number that the target has reached (-1: that of the batch). Not recorded: `flagged`
    changes, and why the table is `suspended` now (empty: it is not).
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


def write_stored(path: str, batch: Stored, relids: Mapping[str, int]) -> None:
    """Records a store batch: one row for the batch (table NULL) and one per table."""
    head = {
        "upto": batch.upto,
        "change_seq": batch.change_seq,
        "position": batch.position,
        "commit_time": batch.commit_time,
    }
    rows = [dict(head, table=None, relid=None, rows=batch.rows, counts="{}")]
    rows += [
        dict(head, table=t, relid=relids[t], rows=c["rows"], counts=json.dumps(dict(c)))
        for t, c in batch.tables.items()
    ]
    lake.append(path, pa.Table.from_pylist(rows, STORED_SCHEMA), progress={STORE_APP: batch.upto})


def read_stored(path: str, after: int = -1) -> list[Stored]:
    """Store batches later than a change number, oldest first."""
    rows = _read(path, ds.field("upto") > after)
    batches: dict[int, Stored] = {}
    tables: dict[int, dict[str, Mapping[str, int]]] = {}
    for r in sorted(rows, key=lambda r: (r["upto"], r["table"] or "")):
        if r["table"] is None:
            tables[r["upto"]] = {}
            batches[r["upto"]] = Stored(
                r["upto"], r["change_seq"], r["position"], r["commit_time"], tables[r["upto"]]
            )
        else:
            tables[r["upto"]][r["table"]] = json.loads(r["counts"])
    return list(batches.values())


def write_applied(path: str, upto: Stored, tables: Iterable[AppliedTable], app: str | None = None) -> None:
    """Records an apply batch: one row for the batch (table NULL) and one per target touched."""
    now = dt.datetime.now(dt.timezone.utc)
    head = {"upto": upto.upto, "change_seq": upto.change_seq, "position": upto.position, "applied_at": now}
    rows: list[dict[str, object]] = [dict(head, table=None)]
    rows += [dict(head, **vars(t)) | {"upto": upto.upto if t.upto < 0 else t.upto} for t in tables]
    lake.append(path, pa.Table.from_pylist(rows, APPLIED_SCHEMA), progress={app: upto.upto} if app else {})


def read_applied(path: str, after: int = -1) -> list[dict[str, Any]]:
    """Rows of the applied table later than a change number, oldest first."""
    rows = _read(path, ds.field("upto") > after)
    return sorted(rows, key=lambda r: (r["upto"], r["table"] or ""))


def write_baseline(path: str, done: Baseline) -> None:
    """Records a baseline whose rows are in the target; one with an open window once more when it closes."""
    row = {k: v for k, v in vars(done).items() if k != "relation"}
    row |= {"relid": done.relation.relid, "layout": done.relation.to_json()}
    if lake.exists(path):  # made by an earlier release, perhaps
        lake.add_columns(path, list(BASELINES_SCHEMA))
    lake.append(path, pa.Table.from_pylist([row], BASELINES_SCHEMA))


def read_baselines(path: str) -> dict[str, Baseline]:
    """The newest baseline of each table on top of which changes may be applied."""
    return {one.table: one for one in _baselines(path) if one.done}


def read_open(path: str) -> dict[str, Baseline]:
    """Of each table the newest baseline, where its rows are in the target and its window is still open."""
    newest = {one.table: one for one in _baselines(path)}
    return {table: one for table, one in newest.items() if not one.done}


def baseline_numbers(path: str) -> dict[str, int]:
    """The number of the newest baseline of each table whose rows are in the target."""
    return {one.table: one.number for one in _baselines(path)}


def _baselines(path: str) -> list[Baseline]:
    """All of them, in order; of one with an open window the closed record comes last."""
    found = []
    for r in _read(path):
        relation = Relation.from_json(r["layout"])
        number, order, after = r.get("number") or 1, r.get("order") or 0, r.get("after")
        window = (r.get("window") or "exact", r.get("closes") or 0)
        found.append(
            Baseline(
                r["table"], relation, r["position"], r["rows"], r["version"], r["finished_at"], r["seconds"],
                number, order, -1 if after is None else after, *window,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.number, one.closes, one.finished_at))


def _read(path: str, where: ds.Expression | None = None) -> list[dict[str, Any]]:
    if not lake.exists(path):
        return []
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_dataset().to_table(filter=where).to_pylist()
    return rows
