"""The intervals at which a task writes: as its file sets them, and as the pipeline reports them."""

from __future__ import annotations

from ..config.groups import group_of
from ..config.table_settings import patterns_of
from ..config.task import Task
from ..lake import json_files
from .capture_state import RUNNING

LEAST_S = 1.0
"""The interval under `freshness: auto` while the task uses less than `cost` allows (seconds)."""


def interval_of(task: Task, table: str) -> float | None:
    """The interval that a task's file sets for a table (seconds); None: `auto`."""
    mine = [task.tables[p].freshness for p in patterns_of(task.tables, table)]
    group = group_of(task.groups, table)
    mine = [one for one in mine if one is not None] or [task.groups[group].freshness if group else None]
    said = task.freshness if mine[-1] is None else mine[-1]
    return None if said == "auto" else said


def commit_interval(task: Task, automatic: float) -> float:
    """Interval of capture's commits (seconds): as the freshest table of the task needs it. `automatic`: the
    interval in force where `auto` is set."""
    said = [task.freshness, *(g.freshness for g in task.groups.values())]
    said += [t.freshness for t in task.tables.values()]
    return min(automatic if one == "auto" else one for one in said if one is not None)


def interval_in_force(task: Task) -> float:
    """Interval of capture's commits now (seconds), as the pipeline of the task reports it."""
    found = json_files.read(task.run_path, "pipeline") or {}
    automatic = found.get("freshness", {}).get("automatic") if found.get("state") == RUNNING else None
    return commit_interval(task, automatic or LEAST_S)
