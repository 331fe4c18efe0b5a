"""What apply did, in time slots: rows, and latency."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from .ledger import APPLIED
from .rolling import Ledger

_START = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_SECOND = 1_000_000


@dataclass(frozen=True)
class Slot:
    """A time slot in which something was applied: its end, rows inserted, updated and deleted in it, and the
    longest time from a commit of the source to the target (whole seconds; None: unknown)."""

    end: dt.datetime
    rows: int
    latency: int | None


def slots(applied: str, width: dt.timedelta) -> list[Slot]:
    """The slots whose records are all kept, in order."""
    ledger = Ledger(applied, APPLIED)
    wanted = ["upto", "applied_at", "committed_at", "inserted", "updated", "deleted"]
    rows = ledger.batches(wanted).select(wanted)
    at, wide = rows["applied_at"].cast(pa.int64()), int(width / dt.timedelta(seconds=1)) * _SECOND
    late = pc.subtract(at, rows["committed_at"].cast(pa.int64()))
    counts = [pc.fill_null(rows[n], 0) for n in ("inserted", "updated", "deleted")]
    many = pc.add(pc.add(counts[0], counts[1]), counts[2])
    found = pa.table({"slot": pc.divide(at, wide), "rows": many, "late": pc.divide(late, _SECOND)})
    gone = pc.max(ledger.totals(["upto"])["gone"]).as_py()
    if gone is not None:  # of its own slot, too
        found = found.filter(pc.greater(found["slot"], gone // wide))
    made = found.group_by("slot").aggregate([("rows", "sum"), ("late", "max")]).sort_by("slot")
    return [Slot(_START + (r["slot"] + 1) * width, r["rows_sum"], r["late_max"]) for r in made.to_pylist()]
