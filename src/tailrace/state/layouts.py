"""The layouts that a task has seen its tables in, and what settings mean in them."""

from __future__ import annotations

from ..config.policies import Policy
from ..config.task import Task
from ..lake import log
from ..model.change import Relation
from .baselines import all_baselines


def layouts_seen(relations: str, baselines: str) -> dict[str, list[tuple[str, Relation]]]:
    """The layouts that a table is known to have had, with the positions (40 hex digits) from which they held,
    in order. Some are known from baselines alone.

    `relations`, `baselines`: the paths of the relation history and of the baselines' record.
    """
    found = {
        table: [(one.from_position.hex().upper(), one.relation) for one in had]
        for table, had in log.history(relations).items()
    }
    for one in all_baselines(baselines):
        found.setdefault(one.table, []).append((one.position, one.relation))
    return {table: sorted(had, key=lambda one: one[0]) for table, had in found.items()}


def policy(task: Task, table: str, *now: Relation) -> Policy:
    """The capture policy of a table, for the columns that it names and that the source has renamed, too.
    `now`: layouts that come after those that the task has seen."""
    wanted = task.policy(table)
    if not wanted.columns:
        return wanted
    seen = layouts_seen(task.relations_path, task.control_path("baselines")).get(table, [])
    return wanted.following([*(one for _, one in seen), *now])
