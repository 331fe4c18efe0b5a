"""Checks before a run: columns of source tables that change tables or targets cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...config.policies import MEDIUM
from ...config.task import Task
from ...engine.rules import SOFT_COLUMN
from ...model.change import HEADERS, PREFIX
from ...sources.base import Finding, LogSource
from ...store.tables import plain_name
from ..mapping.static_checks import names_of
from ..mapping.table_map import task_map

_OWN = frozenset(PREFIX + header for header in HEADERS)
_ELSE = "rename %s at the source, or leave the table out (`source: {exclude: [%s]}`)"


def column_findings(task: Task, source: LogSource, tables: Sequence[str]) -> list[Finding]:
    """Findings for columns that differ only in letter case, or have a name that tailrace uses."""
    found: list[Finding] = []
    for table, names in source.columns(tables).items():
        if any(_of_table(task, table, names)):  # some of these may not be captured
            captured = [c.name for c in source.relation(table).columns]
            found += _of_table(task, table, captured)
    return found


def _of_table(task: Task, table: str, names: Sequence[str]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(name.lower(), name)) != name:
            what = (
                f"the columns {other} and {name} differ in letter case only: a change table cannot have both"
            )
            yield Finding("error", what, table, _ELSE % ("one", table), table)
        if name.lower() in _OWN:
            what = f"the column {name} has the name of a column that every change table has"
            yield Finding("error", what, table, _ELSE % ("it", table), table)
        if plain_name(name) != name and plain_name(name) in names:
            what = (
                f"the column {name} has the name under which a change table stores former values of a column "
                "whose type has changed"
            )
            yield Finding("error", what, table, _ELSE % ("it", table), table)
    yield from _marked(task, table, names)


def _marked(task: Task, table: str, names: Sequence[str]) -> Iterator[Finding]:
    """A finding if the column that marks deleted rows exists already; a database distinguishes case."""
    one, wanted = task.table(table), task_map(task, table)
    if one.rule_mode != "soft_delete" or task.policy(table).level < MEDIUM:
        return
    mark = one.soft_delete or SOFT_COLUMN
    for name in names_of(wanted, names):
        if name == mark or (not task.target.database and name.lower() == mark.lower()):
            cure = f"name another column for the mark (`tables: {{{table}: {{soft_delete: COLUMN}}}}`)"
            if name in names and name not in wanted.columns:
                cure += f", or leave out the column of the table (`drop: [{name}]`)"
            what = f"deleted rows are marked in the column {mark}, but the table already has a column {name}"
            yield Finding("error", what, table, cure, table)
