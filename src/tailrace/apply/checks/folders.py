"""Checks of the folders of a task before it writes there: whether it can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ...config.task import Task
from ...sources.base import Finding


def folder_findings(task: Task) -> list[Finding]:
    """Findings about the task's home and the folder of its Delta targets: they cannot be written."""
    places = {"home": task.home} | ({} if task.target.database else {"target.path": task.target.path})
    return [one for setting, path in places.items() for one in _unwritable(setting, path)]


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
