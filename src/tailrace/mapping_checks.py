"""Mistakes in a task's mappings that are found without Spark, so that capture alone finds them, too."""

from __future__ import annotations

from collections.abc import Sequence

from .apply.plain_checks import constants_clash, plain_mistakes
from .apply.table_map import TableMap, task_map
from .apply.together import shared
from .control.task import Task
from .errors import ConfigError
from .sources.base import Finding, LogSource


def maps(task: Task, tables: Sequence[str]) -> dict[str, TableMap]:
    """The mappings of tables that have one, and of those that share a target with them.

    Raises:
        ConfigError: the task's target takes none.
    """
    found = {t: task_map(task, t) for t in tables}
    together = shared(list(found.values()))
    return {t: one for t, one in found.items() if not one.plain or one.target in together}


def plain_findings(task: Task, source: LogSource, tables: Sequence[str]) -> list[Finding]:
    """What is wrong with the mappings of tables: names and keys, constants of sources that share a target, a
    target that takes no mappings. No expression is looked at."""
    try:
        mine = maps(task, tables)
    except ConfigError as error:
        return [Finding("error", error.what, error.where or task.name, error.hint or "")]
    found = [finding(t, what) for t, one in mine.items() for what in plain_mistakes(one, source.relation(t))]
    for target, many in shared(list(mine.values())).items():
        found += [finding(target, what) for what in constants_clash(many)]
    return found


def finding(where: str, what: str) -> Finding:
    """A mistake as a finding, with the statement that cures it, where it names one."""
    sql = what.partition("; ALTER ")[2]
    cure = f"ALTER {sql}" if sql else "correct `tables` in the task file (docs/mapping.md)"
    return Finding("error", what.partition("; ALTER ")[0], where, cure)
