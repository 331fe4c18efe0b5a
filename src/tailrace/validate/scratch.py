"""Temporary folders of a validation or repair, in the task's home, which executors on other hosts
can read."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ..config.task import Task
from ..errors import room
from ..lake.folders import last_change, remove_folder, subfolders
from ..lake.storage import join, make_folder

KEPT_S = 2 * 86400.0
"""Seconds without additions after which folders of processes on other hosts are removed."""


@contextmanager
def scratch_folder(task: Task) -> Iterator[str]:
    """Creates a folder that is removed when the block ends. Folders of killed processes are removed, too."""
    every = join(task.run_path, "scratch")
    mine = f"{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    with room(every):
        make_folder(join(every, mine))
    for name in subfolders(every):
        if name != mine and _is_abandoned(every, name):
            remove_folder(join(every, name))
    try:
        yield join(every, mine)
    finally:
        remove_folder(join(every, mine))


def _is_abandoned(every: str, name: str) -> bool:
    """Returns whether the process of a folder has ended."""
    host, _, rest = name.rpartition(".")[0].rpartition(".")
    if host == platform.node() and rest.isdigit() and not _is_running(int(rest)):
        return True
    return time.time() - last_change(join(every, name)) > KEPT_S


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
