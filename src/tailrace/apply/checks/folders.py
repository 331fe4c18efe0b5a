"""Checks before a run: whether the task can write to its folders."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ...config.task import Task
from ...errors import TailraceError
from ...lake.objects import Objects
from ...lake.storage import is_remote
from ...sources.base import Finding


def folder_findings(task: Task) -> list[Finding]:
    """Findings if the task's home, or the folder of its targets, cannot be written to."""
    paths = {"home": task.home}
    if task.target.type == "delta" or task.target.catalog_properties.get("warehouse") == task.target.path:
        paths["target.path"] = task.target.path
    return [
        one
        for setting, path in paths.items()
        for one in (_refused if is_remote(path) else _unwritable)(setting, path)
    ]


def _refused(setting: str, address: str) -> Iterator[Finding]:
    """Tries in an object store, with a temporary file, what a task does there."""
    there, name = Objects(address), f".tailrace-check-{uuid.uuid4().hex}"
    steps: dict[str, Callable[[], object]] = {
        "write a file (s3:PutObject)": lambda: there.write(name, b"1"),
        "read a file (s3:GetObject)": lambda: there.read(name),
        "list the files (s3:ListBucket)": lambda: there.names(name),
        "create a file only if it does not exist (s3:PutObject with If-None-Match)": lambda: _refuses_second(
            there, name
        ),
        "delete a file (s3:DeleteObject)": lambda: there.delete(name),
    }
    for what, step in steps.items():
        try:
            step()
        except (OSError, TailraceError) as error:
            cure = f"give the task's keys or role this right; check `storage` and `{setting}`"
            why = error.what if isinstance(error, TailraceError) else error
            yield Finding("error", f"the task cannot {what} in {address}: {why}", setting, cure)
            return


def _refuses_second(there: Objects, name: str) -> None:
    if there.create(name, b"2"):
        raise OSError("the store ignores the condition, so two processes could write the same commit")


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
