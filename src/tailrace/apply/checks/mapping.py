"""Checks before a run: mistakes in mappings that are found without Spark, so capture alone finds them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...config.task import Task
from ...errors import ConfigError
from ...model.change import Relation
from ...sources.base import Finding, LogSource
from ...state.layouts import layouts_seen
from ...targets.postgresql.connection import Database, check_names
from ...targets.rule_columns import rules_of
from ..mapping.left_out import TO_HAVE_IT, LeftOutColumns, stays_out
from ..mapping.multi_source import marks_clash, shared
from ..mapping.static_checks import constants_clash, plain_mistakes, unknown_drops
from ..mapping.table_map import TableMap, task_map


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
    fitted, findings = fitted_to(task, mine, layouts)
    found = [one for one in findings if one.level == "error"]  # apply writes the warnings
    found += [finding(t, what, t) for t, one in fitted.items() for what in plain_mistakes(one, layouts[t])]
    for target, many in shared(list(mine.values())).items():
        found += [finding(target, what) for what in constants_clash(many)]
    return found + rules_findings(task, mine) + database_findings(task, mine)


def rules_findings(task: Task, mine: Mapping[str, TableMap]) -> list[Finding]:
    """Sources of one target whose rules make different things of it."""
    return [
        finding(target, what)
        for target, many in shared(list(mine.values())).items()
        for what in marks_clash(target, {m.source: rules_of(task, m.source) for m in many})
    ]


def fitted_to(
    task: Task, mine: Mapping[str, TableMap], layouts: Mapping[str, Relation]
) -> tuple[dict[str, TableMap], list[Finding]]:
    """Returns the mappings for the present layouts of the source, and findings.

    Columns that once had a name under `drop` are left out, each with a warning. A name under `drop` that no
    column ever had is an error.
    """
    paths = task.relations_path, task.control_path("baselines")
    seen = layouts_seen(*paths) if any(one.drop for one in mine.values()) else {}
    fitted, found = {}, []
    for table, one in mine.items():
        had = [*(relation for _, relation in seen.get(table, ())), layouts[table]]
        columns = {c.name for relation in had for c in relation.columns}
        found += [finding(table, what, table) for what in unknown_drops(one, columns)]
        at = LeftOutColumns.of(one, had).at(layouts[table])
        fitted[table] = at.map(one)
        found += [
            Finding("warning", stays_out(name, was), table, TO_HAVE_IT % (name, name), table)
            for name, was in at.left_out
        ]
    return fitted, found


def database_findings(task: Task, mine: Mapping[str, TableMap]) -> list[Finding]:
    """Errors for names in mappings that a database does not accept; none for a Delta target."""
    if not task.target.database:
        return []
    found, database = [], Database.of(task.target.database)
    for table, one in mine.items():
        try:
            database.target(one.target)
            check_names([*one.columns, *one.constants], table)
        except ConfigError as error:
            found.append(Finding("error", error.what, table, error.hint or "", table))
    return found


def finding(where: str, what: str, table: str | None = None) -> Finding:
    """Returns a mistake as a finding, with the statement that fixes it if the mistake names one.

    `table`: the table, if the mistake concerns only one.
    """
    sql = what.partition("; ALTER ")[2]
    cure = f"ALTER {sql}" if sql else "correct `tables` in the task file (docs/mapping.md)"
    return Finding("error", what.partition("; ALTER ")[0], where, cure, table)
