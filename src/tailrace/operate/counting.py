"""What a run did, counted from its key log rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..wire.keylog_values import IGNORED
from . import rows

COUNTS = ("change", "insert", "update", "delete", "truncate", "ignored", "flagged", "error")
_MADE = {"insert": ["I"], "update": ["U", "M"], "delete": ["D"], "truncate": ["T"]}
_NONE = -(1 << 63)
_COLUMNS = (
    "run_id", "action_taken", "result_row_count", "result_error", "flagged_count", "keylog_sort",
    "keylog_ts", "change_row_timestamp", "change_row_nanosecond",
)  # fmt: skip


class Counted:
    """Counts of one run that grow batch by batch.

    >>> Counted().as_row()["change_count"], Counted().as_row()["latency_avg_ms"]
    (0, None)
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.first: int | None = None
        self.last: int | None = None
        self.until: Any = None
        self.flagged_count: int | None = None
        self._timed, self._sum_us, self._max_us = 0, 0, 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows of that run."""
        action, made = batch["action_taken"], pc.fill_null(pc.greater(batch["result_row_count"], 0), False)
        for name, codes in _MADE.items():
            mine = pc.is_in(action, pa.array(codes))
            self.counts[name] += _true(mine if name == "truncate" else pc.and_(mine, made))
        self.counts["change"] += batch.num_rows
        self.counts["ignored"] += _true(pc.equal(action, IGNORED))
        self.counts["error"] += _true(pc.is_valid(batch["result_error"]))
        self.counts["flagged"] += batch.filter(rows.flagged()).num_rows
        least, most = (f(batch["keylog_sort"]).as_py() for f in (pc.min, pc.max))
        self.first = least if self.first is None else min(self.first, least)
        # It only grows within a run, so its greatest value is the one after the last row.
        flagged = pc.max(batch["flagged_count"]).as_py()
        self.flagged_count = max(flagged or 0, self.flagged_count or 0)
        self.last = most if self.last is None else max(self.last, most)
        at = pc.max(batch["keylog_ts"]).as_py()
        self.until = at if self.until is None else max(self.until, at or self.until)
        took = latency_us(batch).drop_null()
        if len(took):
            self._max_us = max(self._max_us, pc.max(took).as_py()) if self._timed else pc.max(took).as_py()
            self._timed += len(took)
            self._sum_us += pc.sum(took).as_py()

    def as_row(self) -> dict[str, Any]:
        """The counts as columns of `statistic`."""
        mean = self._sum_us / self._timed / 1000 if self._timed else None
        return {
            **{f"{name}_count": many for name, many in self.counts.items()},
            "first_sort": self.first,
            "last_sort": self.last,
            "latency_avg_ms": mean,
            "latency_max_ms": self._max_us / 1000 if self._timed else None,
        }


def latency_us(batch: pa.RecordBatch) -> pa.Array:
    """Microseconds from each change to its row in the key log. Two clocks: if ours is behind the source's,
    the values are too small, even negative. NULL if the change has no time."""
    whole = batch["change_row_timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    rest = pc.divide(pc.fill_null(batch["change_row_nanosecond"], 0).cast(pa.int64()), 1000)
    return pc.subtract(batch["keylog_ts"].cast(pa.int64()), pc.add(whole, rest))


def count(keylog: str, runs: Iterable[str], into: Mapping[str, Counted] | None = None) -> dict[str, Counted]:
    """Counts of runs. `into`: what was counted before; only later rows are read.

    Rows of a run are found by the files' own statistics: run ids begin with their time.
    """
    wanted = sorted(set(runs))
    found = {run: (into or {}).get(run) or Counted() for run in wanted}
    if not wanted:
        return found
    counted = {run: _NONE if c.last is None else c.last for run, c in found.items()}
    where = pc.field("run_id").isin(wanted) & (pc.field("keylog_sort") > min(counted.values()))
    for batch in rows.batches(rows.opened(keylog), _COLUMNS, where):
        for run in pc.unique(batch["run_id"]).to_pylist():
            new = pc.greater(batch["keylog_sort"], counted[run])
            mine = batch.filter(pc.and_(pc.equal(batch["run_id"], run), new))
            if mine.num_rows:
                found[run].add(mine)
    return found


def _true(values: pa.Array) -> int:
    return int(pc.sum(pc.fill_null(values, False)).as_py() or 0)
