"""Temporary folders of a validation or repair, in the task's home, which executors on other hosts
can read."""

from __future__ import annotations

import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config.task import Task
from ..errors import room

KEPT_S = 2 * 86400.0
"""Seconds without additions after which folders of processes on other hosts are removed."""


@contextmanager
def scratch_folder(task: Task) -> Iterator[str]:
    """Creates a folder that is removed when the block ends. Folders of killed processes are removed, too."""
    every = Path(task.run_path) / "scratch"
    mine = every / f"{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    with room(str(mine)):
        mine.mkdir(parents=True)
    for folder in every.iterdir():
        if folder != mine and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    try:
        yield str(mine)
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Returns whether the process of a folder has ended."""
    host, _, rest = folder.name.rpartition(".")[0].rpartition(".")
    if host == platform.node() and rest.isdigit() and not _is_running(int(rest)):
        return True
    try:
        newest = max(entry.stat().st_mtime for entry in [folder, *folder.rglob("*")])
    except OSError:  # it is being removed
        return False
    return time.time() - newest > KEPT_S


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
