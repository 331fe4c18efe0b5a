"""Mistakes in a task's mappings that can be found without Spark, so that capture alone finds them, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...config.task import Task
from ...errors import ConfigError
from ...lake import log
from ...model.change import Relation
from ...sources.base import Finding, LogSource
from ..ddl import IGNORE
from ..targets.postgresql.place import Place, check_names
from .shared_target import shared
from .static_checks import constants_clash, plain_mistakes, renamed_drops, unknown_drops
from .table_map import TableMap, task_map


def maps(task: Task, tables: Sequence[str]) -> dict[str, TableMap]:
    """The mappings of tables that have one, and of tables that share a target with them."""
    found = {t: task_map(task, t) for t in tables}
    together = shared(list(found.values()))
    return {t: one for t, one in found.items() if not one.plain or one.target in together}


def plain_findings(task: Task, source: LogSource, tables: Sequence[str]) -> list[Finding]:
    """Mistakes in the mappings of tables: names and keys, constants of sources that share a target.
    Expressions are not checked."""
    mine = maps(task, tables)
    layouts = {t: source.relation(t) for t in mine}
    found = drop_findings(task, mine, layouts)
    found += [finding(t, what) for t, one in mine.items() for what in plain_mistakes(one, layouts[t])]
    for target, many in shared(list(mine.values())).items():
        found += [finding(target, what) for what in constants_clash(many)]
    return found + database_findings(task, mine)


def drop_findings(task: Task, mine: Mapping[str, TableMap], layouts: Mapping[str, Relation]) -> list[Finding]:
    """Columns that mappings leave out and that their tables never had, or have renamed; `layouts`: those that
    the source has now."""
    history = log.history(task.relations_path) if any(one.drop for one in mine.values()) else {}
    found = []
    for table, one in mine.items():
        had, now = [layout.relation for layout in history.get(table, ())], layouts[table]
        columns = {c.name for relation in (now, *had) for c in relation.columns}
        wrong = unknown_drops(one, columns)
        if task.table(table).ddl.get("rename") != IGNORE:  # else the target keeps the name
            wrong += renamed_drops(one, now, had)
        found += [finding(table, what) for what in wrong]
    return found


def database_findings(task: Task, mine: Mapping[str, TableMap]) -> list[Finding]:
    """Names in mappings that a database does not accept; none for a Delta target."""
    if not task.target.database:
        return []
    found, place = [], Place.of(task.target.database)
    for table, one in mine.items():
        try:
            place.target(one.target)
            check_names([*one.columns, *one.constants], table)
        except ConfigError as error:
            found.append(Finding("error", error.what, table, error.hint or ""))
    return found


def finding(where: str, what: str) -> Finding:
    """A mistake as a finding, with the statement that fixes it, if it names one."""
    sql = what.partition("; ALTER ")[2]
    cure = f"ALTER {sql}" if sql else "correct `tables` in the task file (docs/mapping.md)"
    return Finding("error", what.partition("; ALTER ")[0], where, cure)
