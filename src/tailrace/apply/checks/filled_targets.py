"""Checks before a run: settings that do not fit the targets, which were filled under other settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from ...config.policies import MEDIUM
from ...config.task import Task
from ...errors import ApplyError, ConfigError
from ...model.change import Relation
from ...model.types import spark_type
from ...sources.base import Finding
from ...state import lifecycle
from ...targets.postgresql.connection import Database, open_session
from ...targets.postgresql.progress import ProgressTable
from ...targets.rule_columns import RULE, rules_of
from ...targets.task_tables import target_tables
from ..mapping.table_map import applied_places
from ..required_changes import Needs
from ..target_mode import other_mode

_LEVEL = "keep it at level 2 or 3, or capture it in a separate task"


def filled_findings(task: Task, tables: Sequence[str], relation: Callable[[str], Relation]) -> list[Finding]:
    """Findings about tables with a target: their level would end its changes, or their mode is not the one
    that filled it. Modes are not checked while the target cannot be reached. `relation` returns the
    layout of a source table."""
    found = [Finding("error", _outdated(task, t), t, _LEVEL) for t in _lowered(task)]
    with suppress(ApplyError):
        for table, have, added in _filled(task, tables):
            mine = {c.name for c in relation(table).columns}
            rest = {n: kind for n, kind in have.items() if n not in mine}
            if wrong := other_mode(rest, added, rules_of(task, table)):
                found.append(Finding("error", wrong[0], table, wrong[1], table))
    return found


def refuse_lowered(task: Task) -> None:
    """Raises ConfigError if a level below 2 would end the changes of an existing target."""
    for table in _lowered(task):
        raise ConfigError(_outdated(task, table), where=table, hint=_LEVEL)


def _lowered(task: Task) -> list[str]:
    states = lifecycle.read(task)
    taken = states.baselines
    present = [t for t in sorted(taken) if not states[t].removed]
    return [t for t in present if task.policy(t).level < MEDIUM]


def _outdated(task: Task, table: str) -> str:
    return f"it has a target, which would not get any more changes at level {task.policy(table).level}"


def _filled(task: Task, tables: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str], Collection[str]]]:
    """Yields the tables that have their baseline, or need none: each with the columns of its target (name ->
    Spark SQL type), and those of them that rules have added."""
    needs, places, loads = Needs(task), applied_places(task, tables), task.baseline.enabled
    mine = [t for t in places if needs.has_baseline(t) or not loads]
    if not mine:
        return
    if not task.target.database:
        lake_tables = target_tables(task)
        for table in mine:
            if lake_tables.exists(path := lake_tables.name(places[table].target)):
                with lake_tables.opened(path) as now:
                    added = set() if places[table].partition else now.rule_columns
                    yield table, {f.name: spark_type(f.type) for f in now.schema}, added
        return
    database = Database.of(task.target.database)
    with open_session(database, database.label) as on:
        progress = ProgressTable(database, task.name, places.__getitem__)
        for table in mine:
            if (found := progress.read(on, table)) is not None:
                columns = found.layout.columns
                added = {c.name for c in columns if c.kind == RULE}
                yield table, {c.name: c.type for c in columns}, added
