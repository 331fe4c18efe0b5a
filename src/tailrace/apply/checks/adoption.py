"""Checks before a run: existing tables in a target's database that a task would fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ...config.task import Task
from ...errors import ApplyError, is_of_table
from ...model.change import Relation
from ...sources.base import Finding
from ...sources.postgresql.connect import Session
from ...state import lifecycle
from ...targets.postgresql.connection import Database, open_session
from ...targets.postgresql.existing_tables import OTHER_WAYS, can_adopt, exists_message, why_not_adoptable
from ...targets.postgresql.progress import ProgressTable
from ...targets.rule_columns import added_by, rules_of
from ..mapping.table_map import applied_places, task_map

_EXISTING = "SELECT name FROM unnest(%s::text[]) name WHERE to_regclass(name) IS NOT NULL"


def adoption_findings(
    task: Task, tables: Sequence[str], relation: Callable[[str], Relation]
) -> list[Finding]:
    """Findings about existing tables that have the names of new targets and do not fit.

    Delta targets have no such findings, and a database that cannot be reached has none. The columns of a
    table with a mapping are not compared. A table whose target is about to be renamed is left out, as its
    target may have either name. `relation` returns the layout of a source table.
    """
    if not task.target.database:
        return []
    moving = {t for t, one in lifecycle.read(task).items() if one.moving}
    places = applied_places(task, [t for t in tables if t not in moving])
    database = Database.of(task.target.database)
    progress = ProgressTable(database, task.name, places.__getitem__)
    with suppress(ApplyError), open_session(database, database.label) as mine:
        existing = {
            row[0] for row in mine.execute(_EXISTING, ([progress.target(t) for t in places],)).fetchall()
        }
        findings, new = list[Finding](), list[str]()
        for table in places:
            try:
                if _is_new(mine, progress, table) and progress.target(table) in existing:
                    new.append(table)
            except ApplyError as error:  # the table has another target
                if not is_of_table(error):
                    raise
                findings.append(Finding("error", error.what, table, error.hint or "", table))
        plain = [t for t in new if task_map(task, t).plain]
        findings += [one for t in plain for one in _of_table(task, mine, database, progress, relation(t))]
        findings += [one for t in new if t not in plain for one in _of_mapped(mine, progress, t)]
        return findings
    return []


def _is_new(mine: Session, progress: ProgressTable, table: str) -> bool:
    """Whether a table has no target yet.

    Raises:
        ApplyError: it has a target with another name.
    """
    if progress.read(mine, table) is not None:
        return False
    progress.refuse_two(mine, table)
    return True


def _of_table(
    task: Task, mine: Session, database: Database, progress: ProgressTable, relation: Relation
) -> list[Finding]:
    try:
        can_adopt(mine, database, progress, relation, added_by(rules_of(task, relation.table)))
    except ApplyError as error:
        if not is_of_table(error):
            raise
        return [Finding("error", error.what, relation.table, error.hint or "", relation.table)]
    return []


def _of_mapped(mine: Session, progress: ProgressTable, table: str) -> list[Finding]:
    if progress.others(mine, table) or not (why := why_not_adoptable(mine, progress, table)):
        return []
    return [Finding("error", exists_message(progress.target(table), why), table, OTHER_WAYS, table)]
