"""Captured tables that were attached as partitions to another captured table.

Their changes arrive under the partitioned table's name, and none under their own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from ..config.policies import MEDIUM
from ..config.task import Task
from ..sources.base import LogSource
from ..state import commands, lifecycle
from ..state.commands import Command
from ..state.lifecycle import TableStates
from ..state.open_warnings import CAPTURE, OpenWarnings

logger = logging.getLogger("tailrace.capture")

_ATTACHED = "it was attached as a partition to "
"""The start of the reason for which these tables are suspended."""


def attached_as(table: str, root: str) -> tuple[str, str]:
    """Returns a message and a hint about a captured table that is a partition of another one now."""
    return (
        f"{_ATTACHED}{root}, and its changes arrive under that table's name",
        f"`tailrace remove TASK {table}` ends its capture; or detach it, then `tailrace resync TASK {table}`",
    )


class AttachedTables:
    """Captured tables that are partitions now, as of the last check."""

    def __init__(self, task: Task) -> None:
        self._orders, self._open = task.commands_path, OpenWarnings(task, CAPTURE)
        self._had: set[str] = set()
        self._told: Mapping[str, str] = {}
        self._lack: dict[str, int] | None = (
            None  # tables with missing changes -> number of the suspending command
        )

    def without(
        self,
        source: LogSource,
        task: Task,
        states: TableStates,
        had: Collection[str],
        wanted: Sequence[str],
    ) -> list[str]:
        """Returns the wanted tables except those that are partitions now, and suspends these with a reason.

        Args:
            had: tables that the task has captured.
        """
        self._had.update(had)
        followed = sorted(t for t in self._had if not states[t].removed)
        roots = source.attached(followed)
        tracked = dict[str, str]()  # tables of a level at which they cannot be suspended
        for table, root in roots.items():
            why = ": ".join(attached_as(table, root))
            if task.policy(table).level < MEDIUM:
                tracked[table] = why
            elif self._told.get(table) != root:
                logger.warning("%s: %s", table, why, extra={"table": table})
            state = states[table]
            told = state.held == lifecycle.SUSPENDED and state.why == why
            if task.policy(table).level >= MEDIUM and not told:
                commands.suspend(self._orders, table, why, who="capture")
                self._lack = None
        self._open.hold("attached", tracked)
        self._told = roots
        self._detached(states, roots)
        return [t for t in wanted if t not in roots]

    def _detached(self, states: TableStates, roots: Collection[str]) -> None:
        """Suspends tables again that are no longer partitions, and were resumed without a new baseline."""
        if self._lack is None:
            self._lack = _lacking(commands.read(self._orders))
        for table, number in self._lack.items():
            state = states[table]
            waits = state.held == lifecycle.SUSPENDED or state.wanted > number or state.removed
            if table in roots or waits:
                continue
            self._lack = None  # its new baseline may exist
            if table in _lacking(commands.read(self._orders)):
                why = (
                    f"{_ATTACHED}another table, which has its changes of that time: only a new baseline "
                    f"has them, `tailrace resync TASK {table}`"
                )
                logger.warning("%s: %s", table, why, extra={"table": table})
                commands.suspend(self._orders, table, why, who="capture")
            return  # the others at the next check


def _lacking(given: Sequence[Command]) -> dict[str, int]:
    """Returns the tables that were suspended as partitions, and for which no baseline was requested since,
    with the number of the command."""
    found: dict[str, int] = {}
    for one in given:
        if one.action == commands.SUSPEND and one.why.startswith(_ATTACHED):
            found[one.table] = one.number
        elif one.action in commands.BASELINES:
            found.pop(one.table, None)
    return found
