"""Which tables of a task have targets, and where."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.policies import MEDIUM
from ..config.task import Task
from ..state import lifecycle
from ..targets.multi_source import TargetLocation
from .mapping.table_map import place_of, task_map


def applied_places(task: Task, tables: Sequence[str]) -> dict[str, TargetLocation]:
    """Those of the tables that are applied, each with the place of its rows."""
    named = lifecycle.read(task).target_names
    applied = [t for t in tables if task.policy(t).level >= MEDIUM]
    return {t: place_of(task_map(task, t), named) for t in applied}
