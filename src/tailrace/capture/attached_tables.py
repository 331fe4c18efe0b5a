"""Captured tables that were attached as partitions to a table whose changes are captured, too: theirs come
under that one's name, and nothing comes under their own."""

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
"""What the reason of their suspension begins with."""


def attached_as(table: str, root: str) -> tuple[str, str]:
    """What is said of a captured table that is a partition of another one now, and what to do."""
    return (
        f"{_ATTACHED}{root}, and its changes come under that table's name",
        f"`tailrace remove TASK {table}` ends its capture; or detach it, then `tailrace resync TASK {table}`",
    )


class AttachedTables:
    """The captured tables that are partitions now, as they were seen last."""

    def __init__(self, task: Task) -> None:
        self._orders, self._open = task.commands_path, OpenWarnings(task, CAPTURE)
        self._had: set[str] = set()
        self._told: Mapping[str, str] = {}
        self._lack: dict[str, int] | None = None  # tables that lack changes -> the order that suspended them

    def without(
        self,
        source: LogSource,
        task: Task,
        states: TableStates,
        had: Collection[str],
        wanted: Sequence[str],
    ) -> list[str]:
        """The wanted tables but those that the task `had`, now or earlier, and that are partitions now: these
        are suspended, and it is said why."""
        self._had.update(had)
        followed = sorted(t for t in self._had if not states[t].removed)
        roots = source.attached(followed)
        tracked = dict[str, str]()  # tables that nothing can suspend
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
        """Suspends tables again that are partitions no longer, and that somebody resumed without a new
        baseline."""
        if self._lack is None:
            self._lack = _lacking(commands.read(self._orders))
        for table, number in self._lack.items():
            state = states[table]
            waits = state.held == lifecycle.SUSPENDED or state.wanted > number or state.removed
            if table in roots or waits:
                continue
            self._lack = None  # its new baseline may be there
            if table in _lacking(commands.read(self._orders)):
                why = (
                    f"{_ATTACHED}another table, which has its changes of that time: only a new baseline "
                    f"brings them, `tailrace resync TASK {table}`"
                )
                logger.warning("%s: %s", table, why, extra={"table": table})
                commands.suspend(self._orders, table, why, who="capture")
            return  # the others at the next look


def _lacking(given: Sequence[Command]) -> dict[str, int]:
    """The tables that were suspended as partitions, and of which nobody has asked for a baseline since; with
    the number of that order."""
    found: dict[str, int] = {}
    for one in given:
        if one.action == commands.SUSPEND and one.why.startswith(_ATTACHED):
            found[one.table] = one.number
        elif one.action in commands.BASELINES:
            found.pop(one.table, None)
    return found
