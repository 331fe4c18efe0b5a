"""`tailrace drop`: removes a task.

It removes the objects that the source keeps for the task, then its folders, and its targets only if
requested. Each step can be repeated: after an interruption, run the command again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..apply.checks.target import refuse_to_drop
from ..apply.mapping.table_map import place_of, task_map
from ..apply.required_changes import Needs
from ..capture.snapshot_sink import landings
from ..config.task import Task
from ..errors import ApplyError
from ..lake import log
from ..lake.failpoints import reach
from ..lake.folders import files, is_folder, remove_folder, subfolders
from ..lake.objects import Objects
from ..lake.storage import is_remote, join, within
from ..sources import open_source
from ..sources.base import SourceObject
from ..state import lifecycle, live, streams
from ..state.baselines import baseline_numbers
from ..state.lifecycle import TableStates
from ..targets.task_tables import target_tables

_GONE = ".dropped"
"""Suffix of a folder that is being removed."""


@dataclass(frozen=True)
class DroppedTask:
    """The parts of a task that are (or would be) removed.

    Attributes:
        source: objects that the source keeps for the task; those of others stay.
        asked: whether the source was queried.
        targets: tables whose targets are removed; empty if the targets stay.
        folders: bytes by folder.
        stays: descriptions of what stays.
    """

    source: list[SourceObject]
    asked: bool
    targets: list[str]
    folders: dict[str, int]
    stays: list[str] = field(default_factory=list)
    dry_run: bool = True

    @property
    def goes(self) -> bool:
        """Whether anything is removed."""
        return bool(self.folders or self.targets or any(one.ours for one in self.source))

    def as_dict(self) -> dict[str, Any]:
        """Returns it for `--json`."""
        return asdict(self)


def drop(task: Task, *, dry_run: bool = True, targets: bool = False, source: bool = True) -> DroppedTask:
    """Removes a task that does not run.

    Args:
        task: the task.
        dry_run: removes nothing, and returns the same result.
        targets: also removes the targets.
        source: whether to remove objects at the source; False if the source no longer exists.

    Raises:
        ConfigError: the task runs.
        SourceError: the source is unreachable, or refuses.
        ApplyError: a target is a table of the source, or the target is unreachable.
    """
    live.refuse(task.run_path, "capture")
    live.refuse(task.run_path, "pipeline")
    found = _found(task, targets=targets, source=source, dry_run=dry_run)
    if dry_run:
        return found
    with ExitStack() as held:
        for half in ("capture", "pipeline"):
            held.enter_context(live.lock(task.run_path, half))
        for table in found.targets:
            landings(task)(table).drop(table)
        reach("drop.targets")
        if source:
            _leave(task)
        reach("drop.source")
        _remove([f for f in found.folders if f != task.run_path])
    remove_folder(task.run_path)
    for folder in (task.target.path if found.targets and not task.target.database else "", task.home):
        if folder and not is_remote(folder) and Path(folder).is_dir() and not any(Path(folder).iterdir()):
            Path(folder).rmdir()
    return found


def _remove(folders: Sequence[str]) -> None:
    """Removes folders, each at once for its readers. A call that was killed can be repeated."""
    for left in (f for f in folders if f.endswith(_GONE)):
        remove_folder(left)
    mine = [f for f in folders if not f.endswith(_GONE)]
    for folder in mine:
        if is_remote(folder):
            remove_folder(folder)
        else:
            Path(folder).rename(folder + _GONE)
            remove_folder(folder + _GONE)


def _found(task: Task, *, targets: bool, source: bool, dry_run: bool) -> DroppedTask:
    states = lifecycle.read(task)
    baselines, removed = states.baselines, states.removed
    begun = _begun(task, targets=targets)
    mine = sorted((baselines.keys() | begun) - removed)
    left = [folder + _GONE for folder in task.own_folders]  # by a call that was killed
    there = {f: _bytes(f) for f in [*left, *task.own_folders] if is_folder(f)}
    stays = _staying(task, mine, targets=targets)
    if not within(task.keylog_path, task.home) and is_folder(task.keylog_path):
        stays.append(f"the key log {task.keylog_path}")
    if targets and mine:
        stays += _left(task, mine, sorted(begun & removed), states)
    if targets:
        refuse_to_drop(task, mine, ask_source=source)
    kept = _kept(task) if source else []
    return DroppedTask(kept, source, mine if targets else [], there, stays, dry_run)


def _begun(task: Task, *, targets: bool) -> set[str]:
    """Returns the tables with a target that this task has written to.

    Such a table has no baseline if its window is open, if the baseline was about to be recorded, or if the
    task reads no baselines.
    """
    known = {*baseline_numbers(task.control_path("baselines"))}
    known |= log.history(task.relations_path).keys()
    try:
        return Needs(task).written(known)
    except ApplyError:
        if targets:
            raise
        return set()


def _staying(task: Task, mine: Sequence[str], *, targets: bool) -> list[str]:
    """Returns descriptions of the targets that stay."""
    if mine:
        known = (
            f"{len(mine)} targets in {_target_path(task)}; only `--targets`, now, removes them with the task"
        )
        return [] if targets else [known]
    if targets and (task.target.database or is_folder(task.target.path)):
        why = "the task has no state that identifies them"
        return [f"targets in {_target_path(task)}, if the task has left any: {why}; remove them there"]
    return []


def _left(task: Task, mine: Sequence[str], removed: Sequence[str], states: TableStates) -> list[str]:
    """Returns descriptions of what stays beside removed targets; `removed` are tables that were removed
    before."""
    stays = [f"the target of {table}, which was removed from the task" for table in removed]
    if task.target.database:
        from ..targets.postgresql.connection import Database

        control = Database.of(task.target.database).control
        return [*stays, f"schemas in the target database: {control}, and those of the targets"]
    names, tables = states.target_names, target_tables(task)
    targets = [tables.name(place_of(task_map(task, t), names).target) for t in (*mine, *removed)]
    known = [tables.scratch_folder(name) if tables.exists(name) else name for name in targets]
    if task.target.type == "iceberg":
        known.append(f"{task.target.path}/catalog.db")
    known += [task.home, task.target.path, task.keylog_path, *task.own_folders]
    ours = [*known, *(folder + _GONE for folder in task.own_folders)]
    for folder in {task.target.path, task.home}:
        there = [join(folder, name) for name in [*subfolders(folder), *Objects(folder).names()]]
        stays += [f"{one}, which is not the task's" for one in sorted(there) if not _in(one, ours)]
    return stays


def _in(path: str, known: Sequence[str]) -> bool:
    """Returns whether a path is one of those known, or contains one of them."""
    return any(within(one, path) for one in known)


def _target_path(task: Task) -> str:
    return "the target database" if task.target.database else task.target.path


def _kept(task: Task) -> list[SourceObject]:
    at = open_source(task)
    try:
        return at.kept(streams.newest(task).stored)
    finally:
        at.close()


def _leave(task: Task) -> None:
    at = open_source(task)
    try:
        at.leave(streams.newest(task).stored)
    finally:
        at.close()


def _bytes(folder: str) -> int:
    return sum(size for _, size in files(folder))
