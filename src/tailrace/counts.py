"""What the Spark half of a task has done since it began, for the screen."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import Any

from .control.ledger import AppliedTable, Stored


class Counts:
    """Counts for the screen: per table rows stored and applied since the start, and their rates."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Any]] = {}
        self._last: Stored | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def stored(self, batch: Stored) -> None:
        with self._lock:
            self._last = batch
            for table, counts in batch.tables.items():
                mine = self._of(table)
                mine["stored"] += counts["rows"]
                mine["stored_position"] = batch.position

    def applied(self, one: AppliedTable) -> None:
        with self._lock:
            mine = self._of(one.table)
            for k in ("inserted", "updated", "deleted"):
                mine[k] += getattr(one, k)
            mine |= {"version": one.version, "plan": one.plan, "seconds": one.seconds}

    def _of(self, table: str) -> dict[str, Any]:
        return self._tables.setdefault(table, {"stored": 0, "inserted": 0, "updated": 0, "deleted": 0})

    def as_dict(self) -> dict[str, Any]:
        with self._lock:
            last = self._last
            lag = None
            if last is not None:
                lag = (dt.datetime.now(dt.timezone.utc) - last.commit_time).total_seconds()
            return {
                "stored": last.upto if last else None,
                "stored_position": last.position if last else None,
                "seconds_since_stored_commit": lag,
                "running_seconds": time.monotonic() - self._began,
                "tables": {t: dict(v) for t, v in sorted(self._tables.items())},
            }
