"""Checks before a run: whether the task can write to its folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ...config.task import Task
from ...sources.base import Finding


def folder_findings(task: Task) -> list[Finding]:
    """Findings if the task's home, or the folder of its targets, cannot be written to."""
    paths = {"home": task.home}
    if task.target.type == "delta" or task.target.catalog_properties.get("warehouse") == task.target.path:
        paths["target.path"] = task.target.path
    return [one for setting, path in paths.items() for one in _unwritable(setting, path)]


def _unwritable(setting: str, path: str) -> Iterator[Finding]:
    folder = next(one for one in (Path(path), *Path(path).parents) if _exists(one))
    if not folder.is_dir():
        yield Finding("error", f"{folder} is a file, not a folder", setting, f"set `{setting}` to a folder")
    elif not os.access(folder, os.W_OK | os.X_OK):
        cure = f"give this user the right to write there, or set `{setting}` to another folder"
        yield Finding("error", f"{folder} is a folder that this user may not write to", setting, cure)
    elif (why := _refuses(folder)) is not None:
        what = f"no folder can be created in {folder}: {why}"
        yield Finding("error", what, setting, f"set `{setting}` to another folder")


def _refuses(folder: Path) -> str | None:
    """The system's reason why no folder can be created in a folder; None if one can be created.

    Access rights are not enough: root ignores them, /proc has no files, and a file system may be full.
    """
    try:
        with TemporaryDirectory(prefix=".tailrace-check-", dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # a parent folder is reported
        return False
