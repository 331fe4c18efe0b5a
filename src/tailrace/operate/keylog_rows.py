"""The rows of a key log, and their counts.

They are read without a JVM. Filters are pushed down to the files, and memory holds a few batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..errors import ConfigError
from ..formats.sqdr.tables import NAMES
from ..lake import delta as lake
from ..lake.opened import open_table
from ..model.positions import order_key
from ..wire.keylog_values import IGNORED

BATCH = 16 * 1024
_TRIED = ("I", "U", "M", "D")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
"""The range of `keylog_sort` that a file without statistics may contain."""


def open_keylog(keylog: str) -> DeltaTable:
    """Opens the newest version of a key log.

    Raises:
        ConfigError: there is no key log, or it is another table.
    """
    if not lake.exists(keylog):
        raise ConfigError(
            "there is no key log",
            where=keylog,
            hint="`tailrace apply --keylog PATH` writes one, and a task file with `keylog: {mode: all}`",
        )
    table = open_table(keylog)
    if missing := [n for n in NAMES if n not in {f.name for f in table.schema().fields}]:
        raise ConfigError(
            f"this is not a key log: it has no column {missing[0]!r}",
            where=keylog,
            hint="`tailrace inspect` says what it is; `tailrace convert --to sqdr --files delta` makes a "
            "key log",
        )
    return table


def has_keylog(keylog: str, *, promised: bool = False) -> bool:
    """Returns whether there is a key log.

    Args:
        promised: whether a task creates it with the first change that it applies.

    Raises:
        ConfigError: there is no key log, and it is not promised; or it is another table.
    """
    if promised and not lake.exists(keylog):
        return False
    open_keylog(keylog)
    return True


def flagged() -> ds.Expression:
    """Returns a filter for changes with an unexpected outcome: a row count other than one, or an error.

    Changes that a rule skipped (`0x00`) do not count, nor do truncates, which have no row count.
    """
    other_count = pc.field("action_taken").isin(_TRIED) & (pc.field("result_row_count") != 1)
    return pc.field("result_error").is_valid() | other_count


def batches(
    table: DeltaTable, columns: Sequence[str], where: ds.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows that match a filter in batches of a few thousand, in no order."""
    yield from lake.dataset(table).to_batches(
        columns=list(columns), filter=where, batch_size=BATCH, batch_readahead=2, fragment_readahead=1
    )


@dataclass(frozen=True)
class _File:
    path: str
    low: int
    high: int


def newest(
    keylog: str, limit: int, where: ds.Expression | None = None, *, upto: int | None = None
) -> list[dict[str, Any]]:
    """Returns the newest rows that match a filter, at most `limit`, oldest first.

    Files are read from the newest on until there are enough rows. With `upto`, rows with a greater
    `keylog_sort` are left out.
    """
    files = sorted(_files(open_keylog(keylog)), key=lambda f: f.high, reverse=True)
    if upto is not None:
        files = [f for f in files if f.low <= upto]
        before = pc.field("keylog_sort") <= upto
        where = before if where is None else where & before
    held: list[tuple[int, int, dict[str, Any]]] = []
    seen = 0
    for one in files if limit else ():
        if len(held) == limit and one.high < held[0][0]:
            break
        wanted = _above(where, held, limit)
        data = _parquet(one.path)
        # First select the rows by the columns needed for that; then read those rows.
        sorts = data.to_table(columns=["keylog_sort"], filter=wanted, batch_size=BATCH)[
            "keylog_sort"
        ].to_numpy()
        if len(sorts) > limit:
            last = pc.field("keylog_sort") >= int(np.partition(sorts, -limit)[-limit])
            wanted = last if wanted is None else wanted & last
        for batch in data.to_batches(filter=wanted, batch_size=BATCH) if len(sorts) else ():
            for row in batch.to_pylist():
                seen += 1
                push = heapq.heappush if len(held) < limit else heapq.heappushpop
                push(held, (row["keylog_sort"], seen, row))
    return [printable(row) for _, _, row in sorted(held, key=lambda h: h[:2])]


def _above(where: ds.Expression | None, held: list[Any], limit: int) -> ds.Expression | None:
    """Returns the filter, limited to rows that are newer than the oldest one found so far."""
    if len(held) < limit or not held:
        return where
    newer = pc.field("keylog_sort") >= held[0][0]
    return newer if where is None else where & newer


def _parquet(path: str) -> ds.Dataset:
    fs, place = lake.filesystem(path)
    return ds.dataset(place, filesystem=fs, format="parquet")


def _files(table: DeltaTable) -> list[_File]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = set(actions.column_names)
    nothing: list[int | None] = [None] * actions.num_rows
    low, high = (
        actions[f"{side}.keylog_sort"].to_pylist() if f"{side}.keylog_sort" in names else nothing
        for side in ("min", "max")
    )
    root = lake.folder_of(table)
    return [
        _File(f"{root}/{unquote(p)}", _LEAST if lo is None else lo, _MOST if hi is None else hi)
        for p, lo, hi in zip(actions["path"].to_pylist(), low, high, strict=True)
    ]


def greatest_sort(keylog: str, *, promised: bool = False) -> int | None:
    """Returns the greatest `keylog_sort`, from the statistics of the files; None if there are no rows.

    `promised` is as in `has_keylog`.
    """
    if not has_keylog(keylog, promised=promised):
        return None
    known = [f.high for f in _files(open_keylog(keylog)) if f.high != _MOST]
    return max(known, default=None)


def printable(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with the byte 0 as text: terminals do not show it, and JSON readers refuse it."""
    return row | {"action_taken": "0x00"} if row.get("action_taken") == IGNORED else row


def later(
    keylog: str, after: int | None, where: ds.Expression | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows that match a filter and have a `keylog_sort` greater than `after` (None: all), in
    order.

    They are read file by file: files of different commits have disjoint ranges.
    """
    after = order_key(after)
    wanted = pc.field("keylog_sort") > after
    wanted = wanted if where is None else wanted & where
    for one in sorted(_files(open_keylog(keylog)), key=lambda f: f.low):
        if one.high <= after:
            continue
        for batch in _parquet(one.path).to_batches(filter=wanted, batch_size=BATCH, fragment_readahead=1):
            yield [printable(r) for r in batch.sort_by("keylog_sort").to_pylist()]


COUNTS = ("change", "insert", "update", "delete", "truncate", "ignored", "flagged", "error")
_MADE = {"insert": ["I"], "update": ["U", "M"], "delete": ["D"], "truncate": ["T"]}
_NONE = -(1 << 63)
_COLUMNS = (
    "run_id", "action_taken", "result_row_count", "result_error", "flagged_count", "keylog_sort",
    "keylog_ts", "change_row_timestamp", "change_row_nanosecond",
)  # fmt: skip


class Counted:
    """The counts of a run, added up batch by batch.

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
        self.counts["flagged"] += batch.filter(flagged()).num_rows
        least, most = (f(batch["keylog_sort"]).as_py() for f in (pc.min, pc.max))
        self.first = least if self.first is None else min(self.first, least)
        # It only grows within a run, so its greatest value is the one after the last row.
        many = pc.max(batch["flagged_count"]).as_py()
        self.flagged_count = max(many or 0, self.flagged_count or 0)
        self.last = most if self.last is None else max(self.last, most)
        at = pc.max(batch["keylog_ts"]).as_py()
        self.until = at if self.until is None else max(self.until, at or self.until)
        took = latency_us(batch).drop_null()
        if len(took):
            self._max_us = max(self._max_us, pc.max(took).as_py()) if self._timed else pc.max(took).as_py()
            self._timed += len(took)
            self._sum_us += pc.sum(took).as_py()

    def as_row(self) -> dict[str, Any]:
        """Returns the counts as columns of `statistic`."""
        mean = self._sum_us / self._timed / 1000 if self._timed else None
        return {
            **{f"{name}_count": many for name, many in self.counts.items()},
            "first_sort": self.first,
            "last_sort": self.last,
            "latency_avg_ms": mean,
            "latency_max_ms": self._max_us / 1000 if self._timed else None,
        }


def latency_us(batch: pa.RecordBatch) -> pa.Array:
    """Returns the microseconds from each change to its row in the key log; NULL if the change has no time.

    Two clocks are compared. If this side's is behind the source's, values are too small or negative.
    """
    whole = batch["change_row_timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    rest = pc.divide(pc.fill_null(batch["change_row_nanosecond"], 0).cast(pa.int64()), 1000)
    return pc.subtract(batch["keylog_ts"].cast(pa.int64()), pc.add(whole, rest))


def count(keylog: str, runs: Iterable[str], into: Mapping[str, Counted] | None = None) -> dict[str, Counted]:
    """Returns the counts of runs.

    The rows of a run are found by the statistics of the files, because run ids begin with a time.

    Args:
        into: earlier counts of the runs; only later rows are read.
    """
    wanted = sorted(set(runs))
    found = {run: (into or {}).get(run) or Counted() for run in wanted}
    if not wanted:
        return found
    counted = {run: _NONE if c.last is None else c.last for run, c in found.items()}
    where = pc.field("run_id").isin(wanted) & (pc.field("keylog_sort") > min(counted.values()))
    for batch in batches(open_keylog(keylog), _COLUMNS, where):
        for run in pc.unique(batch["run_id"]).to_pylist():
            new = pc.greater(batch["keylog_sort"], counted[run])
            mine = batch.filter(pc.and_(pc.equal(batch["run_id"], run), new))
            if mine.num_rows:
                found[run].add(mine)
    return found


def _true(values: pa.Array) -> int:
    return int(pc.sum(pc.fill_null(values, False)).as_py() or 0)
