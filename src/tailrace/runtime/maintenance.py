"""Maintenance of a task's Delta tables: retention (`operate.retention`), compaction, limits for old versions.

Targets keep every version of the last hour, then one per hour, up to `vacuum_after`. The other tables are not
read at older versions: replaced files are deleted after an hour, commits after `keep_commits`, which streams
need. Files that no commit refers to are deleted after three days.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..apply.mapped_snapshots import loaded
from ..apply.mapping.table_map import applied_places
from ..apply.target_owner import refuse_other
from ..apply.vendor.openedge_tables import TRACKING_TABLE
from ..capture.ddl_history import BEGINS
from ..config.quantities import FOREVER, ago
from ..config.settings import MaintenanceSettings
from ..config.task import Task
from ..errors import TargetLostError, from_spark, in_one_line, is_of_table
from ..formats.openedge.metadata import change_table
from ..keylog.control_tables import EXCEPTIONS
from ..keylog.tokens import tokens_logged
from ..lake import delta as lake
from ..lake import json_files, log, log_retention, thinning
from ..lake.opened import open_table
from ..lake.thinning import HOUR_S, Past
from ..model.positions import order_key
from ..model.sequence import TIME_DIGITS, time_part
from ..operate import disk
from ..operate.consumers import consumers_of
from ..operate.retention import purge_task
from ..state import lifecycle
from ..state.baselines import Baseline, all_baselines, read_baselines
from ..state.declarations import APPENDED
from ..state.ledger import STORE_APP
from ..state.open_warnings import PIPELINE, OpenWarnings
from ..state.retention import trim_batches, trim_tables
from ..targets.base import Target
from ..targets.lake.target import LakeTarget

_NAME = "maintenance"
CONTROL = (*(one.name for one in APPENDED), "ddl_history", "consumers", "quarantine", EXCEPTIONS)
"""Control tables of which only the current version is read; `stored` and `applied` are rolled up
(`state.rolling`)."""
DAY_S = 86_400.0


class Maintenance:
    """Maintains a task's tables; one instance per pipeline."""

    def __init__(self, task: Task, target: Target) -> None:
        self._task, self._target = task, target
        before = json_files.read(task.run_path, _NAME) or {}
        self._last, self._swept = float(before.get("done", 0.0)), float(before.get("swept", 0.0))
        self._lock, self._commits = threading.Lock(), Counter[str]()
        self._open, self._waits = OpenWarnings(task, PIPELINE), dict[str, str]()

    def stored(self, tables: Iterable[str]) -> None:
        """Counts a commit to TRACKING and these tables' change tables; called by the store thread."""
        with self._lock:
            self._commits.update([self._task.tracking_path, *map(self._task.changes_path, tables)])

    def compact(self) -> None:
        """Compacts the change tables that got many small files since the last call."""
        small_files = self._task.maintenance.small_files
        with self._lock:
            due = [path for path, commits in self._commits.items() if commits >= small_files]
            for path in due:
                del self._commits[path]
        for path in due:
            lake.compact(path, small_files)

    def due(self) -> bool:
        """Whether the next round is due; counted across restarts, and true after the clock was set back."""
        return not 0 <= time.time() - self._last < self._task.maintenance.every

    def run(self) -> None:
        """Runs one round; work on a target that does not answer waits for the next."""
        self._waits.clear()
        try:
            self._run()
        except TargetLostError as error:
            self._waits[""] = f"maintenance waits: {error.what}"
        self._open.hold("maintenance", self._waits, "it is retried")

    def _run(self) -> None:
        self._last = time.time()
        task = self._task
        purge_task(task)
        forget_old_records(task)
        tables = read_baselines(task.control_path("baselines"))
        known = sorted({*tables, *log.history(task.relations_path)})
        openedge = [f"{task.openedge_path}/{name}" for name in (TRACKING_TABLE, *map(change_table, known))]
        read_by_streams = dict[str, str | None].fromkeys((task.keylog_path, *openedge))
        read_by_streams |= {task.changes_path(t): t for t in known} | {task.tracking_path: ""}
        for path, table in read_by_streams.items():
            if lake.exists(path):
                self._read_by_streams(path, table)
        trim_tables(task, logged=tokens_logged(task.keylog_path, task.name, task.keylog.mode))
        trim_batches(task, loaded(task.control_path("mapped")))
        control = [task.relations_path, *map(task.control_path, CONTROL)]
        for path in control:
            if lake.exists(path):
                self._only_newest(path)
        self._log()
        sweeps = not 0 <= self._last - self._swept < DAY_S
        self._targets(sorted(tables) if task.baseline.enabled else known, tables, sweeps=sweeps)
        if sweeps:
            ledgers = [task.control_path(name) for name in ("stored", "applied")]
            for path in (task.log_path, *ledgers, *read_by_streams, *control):
                thinning.sweep(path)
            self._swept = self._last
        use = disk.measure(task)
        disk.note(task, use)
        self._open.hold("disk", {"": use.warning} if use.warning else {}, disk.CURE)
        json_files.write(task.run_path, _NAME, {"done": self._last, "swept": self._swept})

    def _read_by_streams(self, path: str, table: str | None) -> None:
        """Maintains a table whose commits are read by streams. `table`: the source table of its changes; ""
        for TRACKING; None if no registered consumer reads it."""
        task, settings = self._task, self._task.maintenance
        lake.compact(path, settings.small_files)
        keep_s, version = HOUR_S, None
        readers = (
            [] if table is None else [c for c in consumers_of(task).all() if not table or c.reads(table)]
        )
        if readers:
            version = log_retention.version_after(
                path, STORE_APP, min((c.acknowledged for c in readers), key=order_key)
            )
            keep_s = max(keep_s, time.time() - log_retention.committed_at(path, version).timestamp() + HOUR_S)
        lake.vacuum(path, keep_s)
        log_retention.forget(path, before=version, older_than_s=settings.keep_commits)

    def _only_newest(self, path: str) -> None:
        """Maintains a table of which only the current version is read."""
        lake.compact(path, self._task.maintenance.small_files)
        lake.vacuum(path, HOUR_S)
        log_retention.forget(path)

    def _log(self) -> None:
        """Maintains LOG; the commits that are not stored yet stay."""
        path = self._task.log_path
        need = log.version_after(path, lake.progress(self._task.tracking_path, STORE_APP))
        lake.vacuum(path, HOUR_S)
        log_retention.forget(path, before=need)

    def _targets(self, tables: Sequence[str], baselines: Mapping[str, Baseline], *, sweeps: bool) -> None:
        """Maintains the targets of tables; `sweeps`: also deletes files that no commit refers to."""
        task, settings = self._task, self._task.maintenance
        states, places = lifecycle.read(task), applied_places(task, tables)
        taken = [b for b in all_baselines(task.control_path("baselines")) if b.done]
        for table in tables:
            # Capture is about to replace or drop the target, and no other process may write to it.
            if states[table].busy or states[table].removed:
                continue
            try:
                if table in places and table in baselines and isinstance(self._target, LakeTarget):
                    refuse_other(task, places[table], baselines[table])
                past = _past(
                    settings, (b.version for b in taken if b.table == table and b.version is not None)
                )
                self._target.maintain(table, settings.small_files, past)
                if sweeps and isinstance(self._target, LakeTarget):
                    self._target.sweep(table)
            except Exception as error:
                said = from_spark(error, where=f"maintenance of {table}")
                if not is_of_table(said):
                    raise
                self._waits[table] = f"its target is not maintained: {in_one_line(said)}"


def _past(settings: MaintenanceSettings, baselines: Iterable[int]) -> Past:
    """Returns which older versions of a target stay, including the versions of its baselines."""
    return Past(settings.vacuum_after, settings.past_size, settings.keep_versions, frozenset(baselines))


def forget_old_records(task: Task, now: dt.datetime | None = None) -> None:
    """Deletes rows of `attrep_apply_exceptions`, `quarantine` and `ddl_history` that are older than
    `retention.records`; the task may be running."""
    if (keep := task.retention.of_records) == FOREVER:
        return
    limit = ago(keep, now)
    seq = time_part(limit)
    at = f"arrow_cast('{limit.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    _delete_rows(task.control_path(EXCEPTIONS), f"TASK_NAME = '{task.name}' AND ERROR_TIME < {at}")
    _delete_rows(task.control_path("quarantine"), f"noticed_at < {at}")
    history = task.control_path("ddl_history")
    if lake.exists(history) and order_key(lake.progress(history, BEGINS)) < seq:
        lake.commit(history, [], progress={BEGINS: seq})  # otherwise capture would write them again
        _delete_rows(history, f"CHANGE_SEQ < '{seq:0{TIME_DIGITS}d}' AND CHANGE_SEQ >= '{1:0{TIME_DIGITS}d}'")


def _delete_rows(path: str, predicate: str) -> None:
    if lake.exists(path):
        lake.retried(lambda: open_table(path).delete(predicate))
