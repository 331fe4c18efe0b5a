"""Checks of the folders of a task before it writes there: whether it can, and whether other tasks do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..config.task import Task
from ..lake.applications import applications
from ..sources.base import Finding
from ..state.ledger import Baseline
from .applied_places import applied_places
from .mapping.shared_rows import TargetPlace

_APP = "tailrace/"


def folder_findings(task: Task, tables: Sequence[str], baselines: Mapping[str, Baseline]) -> list[Finding]:
    """Findings about the task's home and its Delta targets: a folder that cannot be written, and, as
    warnings, targets of these tables that other tasks write to."""
    places = {"home": task.home} | ({} if task.target.database else {"target.path": task.target.path})
    found = [one for setting, path in places.items() for one in _unwritable(setting, path)]
    if found or task.target.database:
        return found
    return list(_shared(task, tables, baselines))


def _unwritable(setting: str, path: str) -> Iterator[Finding]:
    there = next(one for one in (Path(path), *Path(path).parents) if _there(one))
    if not there.is_dir():
        yield Finding("error", f"{there} is a file, not a folder", setting, f"set `{setting}` to a folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        cure = f"give this user the right to write there, or set `{setting}` to another folder"
        yield Finding("error", f"{there} is a folder that this user may not write to", setting, cure)
    elif (why := _refuses(there)) is not None:
        what = f"no folder can be made in {there}: {why}"
        yield Finding("error", what, setting, f"set `{setting}` to another folder")


def _refuses(folder: Path) -> str | None:
    """Why no folder can be made in a folder, in the system's words; None: one can. Rights say nothing to
    root, and nothing of file systems that are none of files (/proc), or full."""
    try:
        with TemporaryDirectory(prefix=".tailrace-check-", dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # a folder above it tells why
        return False


def _shared(task: Task, tables: Sequence[str], baselines: Mapping[str, Baseline]) -> Iterator[Finding]:
    """What others wrote before a table's baseline is gone, or is about to go."""
    for table, place in applied_places(task, tables).items():
        since = baselines[table].version if table in baselines else -1
        theirs = {app for app in applications(task.target_path(place.target), since) if app.startswith(_APP)}
        if others := sorted({name for app in theirs if (name := _other(task, place, app))}):
            yield Finding(
                "warning",
                f"its target {place.target} is written by the task {', '.join(others)}, too: each replaces "
                "and changes rows of the other",
                table,
                "give each task a target folder of its own, or tell the rows apart by `constants` in the key "
                "(docs/mapping.md); if that task is gone, the next baseline replaces what it left",
            )


def _other(task: Task, place: TargetPlace, app: str) -> str | None:
    """The other task that an app id is of; None if it is this one, or if its rows are told apart from those
    of this one."""
    name, _, part = app.removeprefix(_APP).partition("/")
    return None if name == task.name or (part and place.partition) else name
