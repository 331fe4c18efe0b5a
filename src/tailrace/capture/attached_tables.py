"""Captured tables that were attached as partitions to a table whose changes are captured, too: theirs come
under that one's name, and nothing comes under their own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from ..config.policies import MEDIUM
from ..config.task import Task
from ..sources.base import LogSource
from ..state import orders
from ..state.orders import TableControl

logger = logging.getLogger("tailrace.capture")

ATTACHED = (
    "it was attached as a partition to {root}, and its changes come under that table's name: "
    "`tailrace remove TASK {table}` ends its capture; or detach it, then `tailrace resync TASK {table}`"
)


class AttachedTables:
    """The captured tables that are partitions now, as they were seen last."""

    def __init__(self, task: Task) -> None:
        self._orders = task.orders_path
        self._had: set[str] = set()
        self._told: Mapping[str, str] = {}

    def without(
        self,
        source: LogSource,
        task: Task,
        states: Mapping[str, TableControl],
        had: Collection[str],
        wanted: Sequence[str],
    ) -> list[str]:
        """The wanted tables but those that the task `had`, now or earlier, and that are partitions now: these
        are suspended, and it is said why."""
        self._had.update(had)
        followed = sorted(t for t in self._had if states.get(t, TableControl(t)).member != "removed")
        roots = source.attached(followed)
        for table, root in roots.items():
            why = ATTACHED.format(table=table, root=root)
            if self._told.get(table) != root:
                logger.warning("%s: %s", table, why, extra={"table": table})
            state = states.get(table, TableControl(table))
            told = state.held == orders.SUSPENDED and state.why == why
            if task.policy(table).level >= MEDIUM and not told:
                orders.suspend(self._orders, table, why, who="capture")
        self._told = roots
        return [t for t in wanted if t not in roots]
