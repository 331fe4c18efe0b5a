"""Checks before a run: settings that are impossible for tables without a key."""

from __future__ import annotations

from collections.abc import Sequence

from ...config.policies import MEDIUM
from ...config.task import Task
from ...sources.base import Finding, LogSource
from ...state.baselines import read_baselines
from ..mapping.table_map import task_map

NO_WINDOW = (
    "a table without a key cannot be read while it is written to: its rows cannot be matched with the "
    "changes in the window"
)
_LOCKS = "lock it while it is read (`source.lock: true`), or name its key (`source.options.keys`)"
_MARKS = "give the table a primary key at the source, or another mode (`tables: {%s: {mode: upsert}}`)"


def needs_locks(source: LogSource, table: str) -> bool:
    """Whether no baseline of a table can be correct: the source reads it while it is written to, and without
    a key changes cannot be matched with rows."""
    return not source.exact and not source.relation(table).key


def keyless_findings(task: Task, source: LogSource, tables: Sequence[str]) -> list[Finding]:
    """Findings for keyless tables with soft delete, or with a baseline in an open window."""
    mine = [t for t in tables if task.policy(t).level >= MEDIUM]
    found = []
    for table in mine:
        if task.table(table).rule_mode == "soft_delete" and not (
            task_map(task, table).key or source.relation(table).key
        ):
            what = "soft delete marks rows by their key, and the table has none"
            found.append(Finding("error", what, table, _MARKS % table, table))
    if source.exact or not task.baseline.enabled:
        return found
    taken = read_baselines(task.control_path("baselines"))
    waiting = [t for t in mine if t not in taken and needs_locks(source, t)]
    return found + [Finding("error", NO_WINDOW, t, _LOCKS, t) for t in waiting]


def why_not(table: str) -> str:
    """Why a table that needs locks is suspended.

    >>> why_not("s.t").partition(": ")[0]
    'no baseline'
    """
    return f"no baseline: {NO_WINDOW}; {_LOCKS}, and `tailrace resync` {table}"
