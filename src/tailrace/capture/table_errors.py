"""Errors of checks at a start that concern one table: they suspend it, and the other tables continue."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from ..config import state_version
from ..config.task import Task
from ..sources.base import Finding, PassingFinding
from ..state import commands

logger = logging.getLogger("tailrace.capture")
CHECK = "check"
"""The author of the commands that suspend these tables."""


def suspend_unfit(task: Task, findings: Sequence[Finding], tables: Collection[str]) -> list[Finding]:
    """Suspends the tables with errors, and returns the other findings.

    If errors concern all of the tables, or the task, none is suspended, and all findings are returned.
    """
    errors: dict[str, list[Finding]] = {}
    for one in findings:
        if one.level != "error" or isinstance(one, PassingFinding):
            continue
        if one.table is None or one.table not in tables:
            return [*findings]
        errors.setdefault(one.table, []).append(one)
    if errors.keys() >= set(tables):
        return [*findings]
    for table, mine in errors.items():
        state_version.begin(task.home)  # a command does not create the state of a task
        why = _why(table, mine)
        logger.warning("%s: %s", table, why, extra={"table": table})
        commands.suspend(task.commands_path, table, why, who=CHECK)
    return [one for one in findings if one.level != "error" or one.table not in errors]


def _why(table: str, errors: Sequence[Finding]) -> str:
    said = "; ".join(" ".join(f"{one.what}: {one.cure}".split()) for one in errors)
    then = f"`tailrace resume TASK {table}`, or `tailrace resync TASK {table}` for a new baseline"
    return f"{said}; then {then}"
