"""Checks before a run: tables in a target's database that somebody made, and that a task would fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ..config.task import Task
from ..errors import ApplyError
from ..model.change import Relation
from ..sources.base import Finding
from ..sources.postgresql.connect import Session
from .applied_places import applied_places
from .mapping.table_map import task_map
from .rule_columns import added_by, rules_of
from .targets.postgresql.adopted import adopts
from .targets.postgresql.place import Place, session
from .targets.postgresql.progress import Progress

_THERE = "SELECT name FROM unnest(%s::text[]) name WHERE to_regclass(name) IS NOT NULL"


def adoption_findings(
    task: Task, tables: Sequence[str], relation: Callable[[str], Relation]
) -> list[Finding]:
    """Findings about targets that are there already and cannot be taken; none for Delta targets, for tables
    with a mapping, and while the target cannot be asked. `relation` gives a source table's layout."""
    if not task.target.database:
        return []
    places = applied_places(task, tables)
    plain = [t for t in places if task_map(task, t).plain]
    place = Place.of(task.target.database)
    progress = Progress(place, task.name, places.__getitem__)
    with suppress(ApplyError), session(place, place.label) as mine:
        there = {row[0] for row in mine.execute(_THERE, ([progress.target(t) for t in plain],)).fetchall()}
        new = [t for t in plain if progress.target(t) in there and progress.read(mine, t) is None]
        return [one for t in new for one in _of_table(task, mine, place, progress, relation(t))]
    return []


def _of_table(
    task: Task, mine: Session, place: Place, progress: Progress, relation: Relation
) -> list[Finding]:
    try:
        adopts(mine, place, progress, relation, added_by(rules_of(task, relation.table)))
    except ApplyError as error:
        return [Finding("error", error.what, relation.table, error.hint or "")]
    return []
