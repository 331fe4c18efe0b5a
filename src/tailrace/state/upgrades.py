"""Upgrades a task's state to the version of this release; each step can be repeated."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..config import state_version
from ..config.task import Task
from ..errors import TailraceError
from ..lake import delta as lake
from . import rolling
from .ledger import APPLIED, STORED

logger = logging.getLogger("tailrace.upgrade")


def upgrade(task: Task) -> None:
    """Runs every step from the state's version on. Only the process that holds the task's pipeline may do
    it.

    Raises:
        TailraceError: a step could not be finished; the next start goes on with it.
    """
    version = state_version.begin(task.home)
    if version == state_version.VERSION:
        return
    for start in range(version, state_version.VERSION):
        logger.warning("upgrading the state of %s from version %d to %d", task.name, start, start + 1)
        STEPS[start](task)
    state_version.write(task.home)


def _totals(task: Task) -> None:
    """Version 1 to 2: adds up the rows of the ledgers."""
    for name, book in (("stored", STORED), ("applied", APPLIED)):
        path = task.control_path(name)
        if not lake.exists(path):
            continue
        if not rolling.fold(path, book):
            raise TailraceError(
                "another process writes the records of batches while they are rolled up",
                where=path,
                hint="stop the other process that runs this task, and start again",
            )


STEPS: dict[int, Callable[[Task], None]] = {1: _totals}
"""Version -> the step to the next one."""
