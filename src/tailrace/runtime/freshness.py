"""Intervals between batches: how long a task, or one table, collects changes before they are written.

Under `freshness: auto` a change after a quiet moment is written at once. The interval of the task grows
while its processes use more than `cost` allows, and shrinks again after that; capture commits at this
interval, and store and apply follow each commit. A table that is expensive to write waits longer: of all
ways to stay under the budget for written bytes, intervals in proportion to the square root of a batch's
bytes keep the sum of the waits smallest.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from ..config.task import Task
from ..lake import written
from ..lake.storage import filesystem
from ..state.intervals import LEAST_S, commit_interval, interval_of
from ..state.ledger import AppliedTable, Stored

MOST_S = 15.0
"""The greatest interval under `auto` (seconds)."""
WINDOW_S = 10.0
"""Seconds over which use is measured at least; twice the interval if that is longer."""
LARGE_BATCH = 50_000
"""Average number of changes per batch above which longer intervals save nothing: the cost is that of the
changes."""
LEAST_WRITTEN = 1_000_000
"""Bytes per second that may always be written to targets."""
_ACTIVE_S = 60.0
CPU, FILES, WRITES = "processor time", "files", "target writes"


@dataclass(frozen=True)
class _Use:
    """Use up to a point in time: seconds of processor time, files, changes, bytes of changes, batches."""

    at: float
    cpu: float
    files: int
    changes: int = 0
    size: int = 0
    batches: int = 0


@dataclass
class FreshnessControl:
    """The intervals of one task; `adapt`, called about once a second, changes them.

    Args:
        task: the task.
        path: the path of a table's target; None if it is no Delta table.
        loading: the number of baseline steps so far; while they run, the interval does not grow.
        clock, cpu: the time, and the processor time of the task's processes (seconds).
    """

    task: Task
    path: Callable[[str], str | None]
    loading: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    cpu: Callable[[], float] = field(default_factory=lambda: cpu_seconds)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # store, apply and the main loop call
    _interval: float = LEAST_S
    _why: str | None = None
    _counted: Counter[str] = field(default_factory=Counter)
    _since: _Use | None = None
    _loaded: int = 0
    _rate: float = 0.0
    _sizes: dict[str, tuple[float, float]] = field(default_factory=dict)  # bytes of a batch, and when
    _written: dict[str, int] = field(default_factory=dict)

    @property
    def interval(self) -> float:
        """Seconds between two commits of capture."""
        return commit_interval(self.task, self._interval)

    def interval_of_table(self, table: str) -> float:
        """Returns the minimum time between two batches of a table (seconds)."""
        return self._limited_interval(table)[0]

    def _limited_interval(self, table: str) -> tuple[float, str | None]:
        """Returns the interval of a table, and what limits it."""
        if (said := interval_of(self.task, table)) is not None:
            return said, None
        writes = min(self._write_interval(table), MOST_S)
        return (writes, WRITES) if writes > self._interval else (self._interval, self._why)

    def _write_interval(self, table: str) -> float:
        with self._lock:
            sizes, rate = dict(self._sizes), self._rate
        if table not in sizes:
            return 0.0
        now = self.clock()
        active = [size for size, at in sizes.values() if now - at < _ACTIVE_S]
        budget = max(self.task.cost.write * rate, LEAST_WRITTEN)
        if sum(active) <= budget * LEAST_S:
            return 0.0
        return math.sqrt(sizes[table][0]) * sum(map(math.sqrt, active)) / budget

    def stored(self, batch: Stored, commits: int) -> None:
        """Counts a store batch, read from `commits` commits of LOG."""
        with self._lock:
            self._counted.update({"files": 2 * commits, "changes": batch.rows, "size": batch.size})

    def applied(self, done: Iterable[AppliedTable]) -> None:
        """Counts an apply batch, and the bytes that it wrote to each table's target."""
        tables = {one.table for one in done}
        if not tables:
            return
        paths = {table: filesystem(path)[1] for table in tables if (path := self.path(table)) is not None}
        sizes, now = written.total().sizes, self.clock()
        with self._lock:
            self._counted["batches"] += 1
            for table, folder in paths.items():
                size = sizes.get(folder, 0) - self._written.get(folder, 0)
                self._written[folder] = sizes.get(folder, 0)
                before = self._sizes.get(table, (float(size), now))[0]
                self._sizes[table] = 0.7 * before + 0.3 * size, now

    def adapt(self) -> None:
        """Adapts the interval to the use since the last call."""
        since, now = self._since, self.clock()
        if since is not None and now - since.at < max(WINDOW_S, 2 * self._interval):
            return
        with self._lock:
            counted = self._counted.copy()
        files = written.total().files + counted["files"]
        use = _Use(now, self.cpu(), files, counted["changes"], counted["size"], counted["batches"])
        self._since, loaded, self._loaded = use, self._loaded, self.loading()
        if since is None:
            return
        seconds, cost = use.at - since.at, self.task.cost
        self._rate = (use.size - since.size) / seconds
        batches = use.batches - since.batches
        if self._loaded > loaded or (use.changes - since.changes) > LARGE_BATCH * max(batches, 1):
            return
        limits = {
            CPU: (use.cpu - since.cpu) / seconds / cost.cpu,
            FILES: (use.files - since.files) / seconds / cost.files,
        }
        why = max(limits, key=lambda one: limits[one])
        pressure = limits[why] if batches else 0.0
        if not 0.8 <= pressure <= 1.0:
            wanted = self._interval * min(max(pressure / 0.9, 0.5), 2.0)
            self._interval = min(max(wanted, LEAST_S), MOST_S)
        self._why = why if self._interval > LEAST_S else None

    def describe(self) -> dict[str, Any]:
        """Returns `interval` (seconds) and `reason` of the task, and those of `tables` that differ from it;
        `automatic` is the interval where `auto` is set."""
        with self._lock:
            known = sorted(self._sizes)
        automatic = round(self._interval, 1)
        mine = (automatic, self._why) if self.task.freshness == "auto" else (self.task.freshness, None)
        tables = {t: (round(one[0], 1), one[1]) for t in known if (one := self._limited_interval(t))}
        return {
            "automatic": automatic,
            "interval": mine[0],
            "reason": mine[1],
            "tables": {
                t: {"interval": s, "reason": why} for t, (s, why) in tables.items() if (s, why) != mine
            },
        }


def cpu_seconds() -> float:
    """Returns the processor time (seconds) of this process and its descendants, Spark included."""
    used = 0.0
    mine = psutil.Process(os.getpid())
    for process in (mine, *mine.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended; its parent has its time
            continue
        used += times.user + times.system + times.children_user + times.children_system
    return used
