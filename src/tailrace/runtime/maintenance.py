"""Maintenance on a cadence: retention (`purging`), compaction, checkpoints of the Delta logs.

Nothing is removed that somebody still needs; files that were replaced or removed go after `vacuum_after`.
"""

from __future__ import annotations

import logging
import time

from ..apply.keylog.exceptions import EXCEPTIONS
from ..apply.keylog.tokens import tokens_logged
from ..apply.mapped_snapshots import loaded
from ..apply.openedge_tables import TRACKING_TABLE
from ..apply.targets.base import Target
from ..config.task import Task
from ..formats.openedge.made import change_table
from ..lake import delta as lake
from ..lake import json_files, log, log_retention
from ..operate.old_records import forget_old
from ..operate.purging import purge_task
from ..state.ledger import STORE_APP, read_baselines
from ..state.orders import of_task
from ..state.upkeep import in_force, shorten

logger = logging.getLogger("tailrace.maintenance")

_NAME = "maintenance"
CONTROL = ("baselines", "orders", "tokens", "errors", "mapped", "ddl_events", "ddl_decisions", "ddl_history",
           "consumers")  # fmt: skip
"""Control tables that are only compacted; `stored` and `applied` are rolled up (`control.rolling`)."""


class Maintenance:
    """Maintains a task's tables; one instance per pipeline."""

    def __init__(self, task: Task, target: Target) -> None:
        self._task, self._target = task, target
        before = json_files.read(task.run_path, _NAME)
        self._last = float(before["done"]) if before else 0.0

    def due(self) -> bool:
        """Whether the next round is due, counted across restarts; also after the clock was set back."""
        return not 0 <= time.time() - self._last < self._task.maintenance.every

    def run(self) -> None:
        """One round."""
        self._last = time.time()
        task, settings = self._task, self._task.maintenance
        purge_task(task)
        forget_old(task)
        tables = read_baselines(task.control_path("baselines"))
        known = {*tables, *log.history(task.relations_path)}
        paths = [task.changes_path(t) for t in sorted(known)]
        paths += [task.control_path(c) for c in CONTROL]
        paths += [task.control_path(EXCEPTIONS), task.tracking_path, task.keylog_path]
        paths += [task.control_path("quarantine")]
        for path in paths:
            if lake.exists(path):
                lake.compact(path, settings.small_files, vacuum_after_s=settings.vacuum_after)
        states = of_task(task.orders_path, tables)
        for table in sorted(tables if task.baseline.enabled else known):
            # Capture is about to replace or drop it, and has been told that nobody else is writing to it.
            if table in states and (states[table].busy or states[table].member == "removed"):
                continue
            self._target.maintain(table, settings.small_files, settings.vacuum_after)
        lake.vacuum(task.relations_path, settings.vacuum_after)
        for name in (TRACKING_TABLE, *map(change_table, sorted(known))):
            if lake.exists(path := f"{task.openedge_path}/{name}"):
                lake.vacuum(path, settings.vacuum_after)
        self._control()
        json_files.write(task.run_path, _NAME, {"done": self._last})

    def _control(self) -> None:
        """Keeps the control tables small, and the Delta logs of tables that are written all the time. The
        store needs LOG's commits from where it stands on."""
        task = self._task
        in_force(task, logged=tokens_logged(task.keylog_path, task.name, task.keylog.mode))
        shorten(task, loaded(task.control_path("mapped")))
        for name in CONTROL:
            log_retention.forget(task.control_path(name))
        stored = lake.progress(task.tracking_path, STORE_APP)
        need = log.version_after(task.log_path, stored)
        log_retention.settle(task.log_path)
        lake.vacuum(task.log_path, log_retention.KEPT_S)
        log_retention.forget(task.log_path, before=need)
        log_retention.forget(task.tracking_path)
