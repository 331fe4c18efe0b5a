"""Totals of a task's store and apply batches, table by table, and each table's progress.

All of it is read from totals and from the few rows added since: how long a task has run does not matter,
only how much waits for tables that are behind.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import PositionError
from ..model.positions import BEFORE_ALL, ChangeNumber, Position, order_key
from .baselines import Baseline
from .declarations import APPLIED, STORED
from .ledger import STORE_APP, Stored, read_stored
from .rolling import Ledger


@dataclass(frozen=True)
class StoredTotal:
    """One table: the last change number stored, change-table rows since the task began, and the number up to
    which single batches have been removed (None: all are kept)."""

    upto: ChangeNumber
    rows: int
    gone: ChangeNumber | None


@dataclass(frozen=True)
class AppliedTotal:
    """One target: the last record (change number, position, time, version), and rows inserted, updated and
    deleted since the task began."""

    upto: ChangeNumber
    position: Position
    applied_at: dt.datetime
    version: int | None
    inserted: int
    updated: int
    deleted: int


class Totals:
    """The totals of a task, as of one version of each of its ledgers.

    Attributes:
        stored, applied: by table.
        stored_upto, applied_upto: the change number of the last batch recorded; None: no batch yet.
    """

    def __init__(self, stored: str, applied: str, app: str = "tailrace/applied") -> None:
        record = Ledger(applied, APPLIED, app)
        self.applied = {
            r["table"]: AppliedTotal(**{n: r[n] for n in AppliedTotal.__dataclass_fields__})
            for r in record.totals(list(AppliedTotal.__dataclass_fields__)).to_pylist()
            if r["table"] is not None
        }
        self.applied_upto = record.progress
        # In this order: what is applied is already stored.
        self._stored = Ledger(stored, STORED, STORE_APP)
        self.stored_upto = self._stored.progress
        self.stored = {
            r["table"]: StoredTotal(r["upto"], r["rows"], r["gone"])
            for r in self._stored.totals(["upto", "rows"]).to_pylist()
            if r["table"] is not None
        }

    def reached(
        self, baselines: Mapping[str, Baseline], loads: Mapping[str, tuple[int, str, int]]
    ) -> dict[str, ChangeNumber]:
        """Each target's progress according to the records; never further than the actual progress.

        A record from before the newest baseline does not count: the baseline has replaced its rows.
        `loads`: of each mapped table the newest load (`apply.loading.loaded`).
        """
        found = {table: one.upto for table, one in self.applied.items()}
        for table, taken in baselines.items():
            number, _, version = loads.get(table, (0, "", 0))
            at = version if taken.version is None else taken.version
            one = self.applied.get(table)
            since = one is not None and one.upto > taken.after and order_key(one.version) >= at
            landed = taken.version is not None or number == taken.number
            found[table] = one.upto if one is not None and since and landed else taken.after
        return found

    def late(self, reached: Mapping[str, ChangeNumber]) -> list[str]:
        """Tables with stored changes that their target has not reached."""
        return [t for t, one in self.stored.items() if one.upto > order_key(reached.get(t))]

    def behind(self, reached: Mapping[str, ChangeNumber]) -> dict[str, int]:
        """Stored change-table rows that targets do not have, for tables that are behind."""
        late = {t: reached.get(t, BEFORE_ALL) for t in self.late(reached)}
        found = {t: self.stored[t].rows for t, upto in late.items() if upto <= 0}
        late = {t: upto for t, upto in late.items() if upto > 0}
        if not late:
            return found
        rows = _later(self._stored.batches(["upto", "table", "rows"], min(late.values()), tables=late), late)
        sums = rows.group_by("table").aggregate([("rows", "sum")]).to_pylist()
        return found | dict.fromkeys(late, 0) | {r["table"]: r["rows_sum"] for r in sums}

    def waiting_since(
        self, reached: Mapping[str, ChangeNumber], tables: Iterable[str]
    ) -> dict[str, dt.datetime]:
        """For those of these tables that are behind, when the source committed the oldest store batch that
        their targets do not have. Reads no more of the record than needed."""
        names = set(tables)
        late = {t: reached.get(t, BEFORE_ALL) for t in self.late(reached) if t in names}
        found: dict[str, dict[str, Any]] = {}
        for one in self._stored.files:  # oldest first
            if late.keys() == found.keys() and all((one.low or 0) > r["upto_min"] for r in found.values()):
                break
            wanted = ["upto", "table", "commit_time"]
            rows = _later(self._stored.batches(wanted, min(late.values()), tables=late, files=[one]), late)
            least = rows.group_by("table").aggregate([("upto", "min"), ("commit_time", "min")])
            for r in least.to_pylist():
                if r["table"] not in found or r["upto_min"] < found[r["table"]]["upto_min"]:
                    found[r["table"]] = r
        return {table: r["commit_time_min"] for table, r in found.items()}


def _later(rows: pa.Table, than: Mapping[str, ChangeNumber]) -> pa.Table:
    """Rows of tables with change numbers above the one given for their table."""
    place = pc.index_in(rows["table"], pa.array(list(than), pa.string())).to_numpy()
    return rows.filter(rows["upto"].to_numpy() > np.fromiter(than.values(), np.int64, len(than))[place])


def last_stored(path: str, upto: ChangeNumber | None = None) -> Stored | None:
    """The newest store batch, without its tables; None if no batch is stored. `upto`: the newest of those
    kept that is not after that change number."""
    ledger, names = Ledger(path, STORED), ["upto", "change_seq", "position", "commit_time"]
    rows = ledger.totals(names) if upto is None else ledger.batches([*names, "table"], upto=upto)
    rows = rows.filter(pc.is_null(rows["table"])).select(names).sort_by("upto")
    found = rows.slice(max(rows.num_rows - 1, 0)).to_pylist()
    return Stored(**found[0]) if found else None


def stored_since(path: str, after: ChangeNumber | None) -> tuple[ChangeNumber | None, list[str]]:
    """The change number of the newest store batch (at least `after`), and the tables with changes after
    `after`."""
    newest = {r["table"]: r["upto"] for r in Ledger(path, STORED).totals(["upto"]).to_pylist()}
    upto = max(newest.pop(None, after), after, key=order_key)
    return upto, sorted(t for t, last in newest.items() if last > order_key(after))


def batches_of(path: str, table: str) -> tuple[list[Stored], ChangeNumber | None]:
    """A table's part of the store batches that are kept, oldest first, and the change number up to which its
    parts may be missing (None: none is)."""
    return read_stored(path, tables=[table]), parts_gone(path).get(table)


def parts_gone(path: str) -> dict[str, ChangeNumber]:
    """Per table, the change number up to which its parts of store batches may be missing, if some are."""
    rows = Ledger(path, STORED).totals(["upto"]).to_pylist()
    return {r["table"]: r["gone"] for r in rows if r["table"] is not None and r["gone"] is not None}


def batches_after(path: str, table: str, after: ChangeNumber | None) -> list[Stored]:
    """A table's part of the store batches after a change number.

    Raises:
        PositionError: some of them are not kept any more.
    """
    kept, gone = batches_of(path, table)
    if gone is not None and gone > order_key(after):
        raise PositionError(
            f"the records of the batches of {table} between the change numbers {after} and {gone} have "
            "been removed",
            where=path,
            hint="`maintenance.keep_ledger` says how long they are kept",
        )
    return [b for b in kept if b.upto > order_key(after)]


def records_of(path: str, table: str) -> list[dict[str, Any]]:
    """Records of one table's batches (`upto`, `position`, `version`): those that are kept, and the last one
    whatever its age."""
    ledger, names = Ledger(path, APPLIED), ["upto", "position", "table", "version", "number"]
    parts = [ledger.batches(names, tables=[table]).select(names), ledger.totals(names).select(names)]
    found = pa.concat_tables(parts)
    rows: list[dict[str, Any]] = found.filter(pc.equal(found["table"], table)).to_pylist()
    return rows
