"""A task that does not run is brought up to date without Spark, where there is nothing to apply."""

from __future__ import annotations

from ..apply.mapped_snapshots import loaded
from ..config.task import Task
from ..lake import delta as lake
from ..lake import log
from ..operate.status import status
from ..state import ledger, live
from ..state.upgrades import upgrade
from ..store import tracking
from ..store.log_files import LogFiles
from ..store.running import runner
from ..store.writer import Store
from .pipeline import store_paths


def store_here(task: Task) -> str | None:
    """Stores what LOG has; gives why the rest needs Spark, None when nothing is left to do.

    Raises:
        PositionError: LOG lacks records.
    """
    if task.store.openedge:
        return "its tables in OpenEdge's layout are written by Spark"
    with live.lock(task.run_path, "pipeline"):
        upgrade(task)
        lake.create(task.tracking_path, tracking.SCHEMA)
        lake.create(task.relations_path, log.RELATIONS_SCHEMA)
        store = Store(store_paths(task), keep_bad=task.on_bad_value == "quarantine")
        waiting = LogFiles(task.log_path, store.begin())
        while files := waiting.batch(store.reached, task.store.max_bytes):
            store.batch(runner(task.log_path, files))
    return _left(task)


def _left(task: Task) -> str | None:
    """What only Spark can do now."""
    if late := [t.table for t in status(task).tables if t.behind]:
        return f"changes of {', '.join(late[:3])} wait to be applied"
    made = loaded(task.control_path("mapped"))
    for table, taken in ledger.read_baselines(task.control_path("baselines")).items():
        if taken.version < 0 and made.get(table, (0, "", 0))[0] != taken.number:
            return f"the baseline of {table} waits to be mapped"
    return None
