"""The disk space of a task: its parts, its growth, and when the disk will be full.

Maintenance measures it each round and keeps one measurement an hour for a day in `<home>/run/disk.json`.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config.quantities import about
from ..config.task import Task
from ..lake import folders as lake_folders
from ..lake import json_files
from ..lake.storage import is_remote, within
from ..state.baselines import read_baselines
from ..targets.task_tables import target_tables

KINDS = ("live", "past", "changes", "log", "keylog", "others")
"""Kinds of files: newest versions of targets; their past; change tables and TRACKING; LOG; the key log;
control tables and files of the processes."""
WEEK_S, DAY_S, _HOUR_S = 7 * 86_400.0, 86_400.0, 3600.0
_NAME, _KEPT = "disk", 25


@dataclass(frozen=True)
class DiskUse:
    """The disk space of a task.

    Attributes:
        sizes: bytes by kind (`KINDS`).
        files: number of files.
        free: bytes that are free where the task writes (the least, if that is on several disks); None in an
            object store.
        growth: bytes a day, measured over the last hours; None if it is not known yet.
    """

    sizes: Mapping[str, int]
    files: int
    free: int | None
    growth: float | None = None

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.sizes.values())

    @property
    def days_left(self) -> float | None:
        """Days until the disk is full at the current growth; None if the task does not grow, or is in an
        object store."""
        if self.free is None or self.growth is None or self.growth <= 0:
            return None
        return self.free / self.growth

    @property
    def warning(self) -> str | None:
        """The warning that the disk will be full within a week; None otherwise."""
        if self.free is None or self.days_left is None or self.days_left * DAY_S >= WEEK_S:
            return None
        return (
            f"the disk will be full in {self.days_left:.0f} days: {about(self.free)} are free, and the task "
            f"grows by {about(self.growth or 0)} a day"
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns it for `--json`."""
        more = {"total": self.total, "days_left": self.days_left}
        return asdict(self) | more


CURE = (
    "`tailrace status TASK --disk` shows what grows; `retention`, `maintenance` and `freshness` bound it "
    "(docs/cost.md)"
)


def measure(task: Task, now: float | None = None) -> DiskUse:
    """Measures the disk space of a task, and its growth since the oldest measurement that is kept."""
    now = time.time() if now is None else now
    sizes, files = Counter[str](dict.fromkeys(KINDS, 0)), 0
    live = _live(task)
    for path, size in _files(task):
        files += 1
        kind = "live" if path in live else _kind(task, path)
        sizes[kind] += size
    use = DiskUse(dict(sizes), files, _free(task))
    before = [one for one in _kept(task) if now - one["at"] >= _HOUR_S]
    if not before:
        return use
    first = before[0]
    growth = (use.total - first["total"]) / (now - first["at"]) * DAY_S
    return DiskUse(use.sizes, use.files, use.free, growth)


def note(task: Task, use: DiskUse, now: float | None = None) -> None:
    """Keeps a measurement: the newest one, and one an hour of the last day."""
    now = time.time() if now is None else now
    kept = _kept(task)
    if not kept or now - kept[-1]["at"] >= _HOUR_S:
        kept = [one for one in [*kept, {"at": now, "total": use.total}] if now - one["at"] <= DAY_S][-_KEPT:]
    json_files.write(task.run_path, _NAME, {"kept": kept, "newest": use.as_dict()})


def newest(task: Task) -> DiskUse | None:
    """Returns the newest measurement of maintenance; None before the first."""
    found = (json_files.read(task.run_path, _NAME) or {}).get("newest")
    return None if found is None else DiskUse(found["sizes"], found["files"], found["free"], found["growth"])


def _kept(task: Task) -> list[dict[str, float]]:
    return list((json_files.read(task.run_path, _NAME) or {}).get("kept", []))


def _live(task: Task) -> set[str]:
    """Returns the paths of the files of the targets' newest versions."""
    if task.target.database:
        return set()
    found = set[str]()
    tables = target_tables(task)
    for name in filter(tables.exists, _targets(task)):
        with tables.opened(name) as table:
            found.update(table.files.path(file["path"]) for file in table.data_files())
    return found


def _targets(task: Task) -> list[str]:
    """Returns the names of the task's targets."""
    if task.target.database:
        return []
    tables = target_tables(task)
    return [tables.name(table) for table in read_baselines(task.control_path("baselines"))]


def _folders(task: Task) -> list[str]:
    """Returns the folders of the task's targets."""
    if not (names := _targets(task)):
        return []
    tables = target_tables(task)
    return [tables.scratch_folder(name) for name in names if tables.exists(name)]


def _files(task: Task) -> Iterator[tuple[str, int]]:
    """Yields all files of the task, with their bytes."""
    for folder in {task.home, task.keylog_path, *_folders(task)}:
        if folder == task.home or not within(folder, task.home):
            yield from lake_folders.files(folder)


def _kind(task: Task, path: str) -> str:
    places = {
        "changes": (f"{task.home}/changes/", f"{task.tracking_path}/", f"{task.openedge_path}/"),
        "log": (f"{task.log_path}/",),
        "keylog": (f"{task.keylog_path}/", f"{task.home}/keylog/"),
    }
    if not task.target.database and path.startswith(f"{task.target.path}/"):
        return "past"
    return next((kind for kind, folders in places.items() if path.startswith(folders)), "others")


def _free(task: Task) -> int | None:
    folders = [task.home] if task.target.database else [task.home, task.target.path]
    local = [one for one in folders if not is_remote(one) and Path(one).exists()]
    return min((shutil.disk_usage(one).free for one in local), default=None)
