"""Maintenance on a cadence: compaction, checkpoints of the Delta logs, retention of LOG by position stored.

Nothing is removed that somebody still needs: LOG goes once it is stored and applied and older than
`keep_log`; files that compaction replaced go after `vacuum_after`.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import time

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from . import lake
from .apply.exceptions import EXCEPTIONS
from .apply.targets.base import Target
from .control import live
from .control.ledger import STORE_APP, read_baselines
from .control.tables import of_task
from .control.task import Task
from .sequence import number_of

logger = logging.getLogger("tailrace.maintenance")

_NAME = "maintenance"


class Maintenance:
    """Keeps a task's tables in shape; one instance per pipeline."""

    def __init__(self, task: Task, target: Target) -> None:
        self._task, self._target = task, target
        before = live.read(task.run_path, _NAME)
        self._last = float(before["done"]) if before else 0.0

    def due(self) -> bool:
        """Whether the cadence says it is time again, counted over restarts."""
        return time.time() - self._last >= self._task.maintenance.every

    def run(self, applied: int) -> None:
        """One round; `applied` is the change number up to which everything is applied."""
        self._last = time.time()
        task, settings = self._task, self._task.maintenance
        stored = lake.progress(task.tracking_path, STORE_APP)
        trim_log(task.log_path, min(applied, stored), older_than_s=settings.keep_log)
        tables = read_baselines(task.control_path("baselines"))
        paths = [task.changes_path(t) for t in tables]
        paths += [
            task.control_path(c) for c in ("stored", "applied", "baselines", "orders", "tokens", "errors")
        ]
        paths += [task.control_path(EXCEPTIONS), task.tracking_path, task.keylog_path]
        for path in paths:
            if lake.exists(path):
                lake.compact(path, settings.small_files, vacuum_after_s=settings.vacuum_after)
        states = of_task(task.orders_path, tables)
        for table in tables:
            # Capture is about to replace it, or to drop it, and has heard that nobody else is at it.
            if table in states and (states[table].busy or states[table].member == "removed"):
                continue
            self._target.maintain(table, settings.small_files, settings.vacuum_after)
        for path in (task.log_path, task.relations_path):
            lake.vacuum(path, settings.vacuum_after)
        live.write(task.run_path, _NAME, {"done": self._last})


def trim_log(log: str, upto: int, *, older_than_s: float) -> int:
    """Takes files off LOG whose every record is at or before a change number and older than that many
    seconds; gives how many. The newest file always stays."""
    delta = DeltaTable(log)
    actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    now_ms = time.time() * 1000
    old = [
        a
        for a in actions
        if a.get("max.CHANGE_SEQ")
        and number_of(a["max.CHANGE_SEQ"]) <= upto
        and _millis(a["modification_time"]) <= now_ms - older_than_s * 1000
    ]
    if not old:
        return 0
    removes: list[AddAction | RemoveAction] = [
        RemoveAction(a["path"], True, int(now_ms), a["size_bytes"], {}) for a in old
    ]
    delta.create_write_transaction(
        removes,
        mode="append",
        schema=delta.schema(),
        commit_properties=CommitProperties(custom_metadata={"tailrace": json.dumps({"trimmed_upto": upto})}),
    )
    return len(old)


def _millis(value: int | dt.datetime) -> float:
    return value.timestamp() * 1000 if isinstance(value, dt.datetime) else float(value)
