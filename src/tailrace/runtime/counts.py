"""Counters of a task's pipeline since its process started: for the screen, metrics and the log."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..state.capture_state import Timings
from ..state.ledger import AppliedTable, Stored

logger = logging.getLogger("tailrace.pipeline")


class Counts:
    """Counts of rows stored and applied per table, of flagged changes and of conflicts by kind; durations of
    store and apply batches, and of writing a table, by plan."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Any]] = {}
        self._last: Stored | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._took = {"store": Timings(), "apply": Timings()}
        self._ended: dict[str, float | None] = {"store": None, "apply": None}
        self._plans: dict[str, Timings] = {}

    def stored(self, batch: Stored, seconds: float) -> None:
        """Adds a store batch and its duration in seconds."""
        said = {"batch": batch.upto, "position": batch.position}
        logger.info(
            "stored %d rows of %d tables in %.1f s", batch.rows, len(batch.tables), seconds, extra=said
        )
        with self._lock:
            self._add_duration("store", seconds)
            self._last = batch
            for table, counts in batch.tables.items():
                mine = self._counts_of(table)
                mine["stored"] += counts["rows"]
                mine["stored_position"] = batch.position

    def applied(self, done: Sequence[AppliedTable], seconds: float) -> None:
        """Adds the result of an apply batch and its duration in seconds; does nothing if the batch did
        nothing."""
        for one in done:
            rows = (one.inserted, one.updated, one.deleted, one.flagged)
            message = f"applied to {one.table}: %d inserted, %d updated, %d deleted, %d flagged (%s, %.1f s)"
            said = {"table": one.table, "batch": one.upto}
            logger.info(message, *rows, one.plan, one.seconds, extra=said)
        with self._lock:
            if done:
                self._add_duration("apply", seconds)
            for one in done:
                self._add(one)

    def _add(self, one: AppliedTable) -> None:
        mine = self._counts_of(one.table)
        for k in ("inserted", "updated", "deleted", "flagged"):
            mine[k] += getattr(one, k)
        mine |= {"version": one.version, "plan": one.plan, "seconds": one.seconds}
        for kind, many in one.conflicts.items():
            mine["conflicts"][kind] = mine["conflicts"].get(kind, 0) + many
        self._plans.setdefault(one.plan, Timings()).add(one.seconds)

    def _add_duration(self, stage: str, seconds: float) -> None:
        self._took[stage].add(seconds)
        self._ended[stage] = time.time()

    def _counts_of(self, table: str) -> dict[str, Any]:
        begun = dict.fromkeys(("stored", "inserted", "updated", "deleted", "flagged"), 0)
        return self._tables.setdefault(table, {**begun, "conflicts": {}})

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
                "tables": {
                    t: {**v, "conflicts": {**v["conflicts"]}} for t, v in sorted(self._tables.items())
                },
                "plans": {plan: asdict(took) for plan, took in sorted(self._plans.items())},
                **{f"{stage}_seconds": asdict(took) for stage, took in self._took.items()},
                **{f"{stage}_at": at for stage, at in self._ended.items()},
            }
