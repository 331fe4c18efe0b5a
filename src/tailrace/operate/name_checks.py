"""Checks the names of tables and columns in a task file.

Settings for a name that does not exist would silently do nothing, so names must exist. Patterns may match
future tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ..config.task import Task
from ..lake import log
from ..model.nearest import meant, meant_tables
from ..model.patterns import fits, fitting, is_pattern
from ..sources.base import Finding, LogSource
from ..state.layouts import policy

_ELSE = "correct the spelling, or remove it from the task file"


def name_findings(
    task: Task, source: LogSource, captured: Sequence[str], known: Collection[str]
) -> list[Finding]:
    """Returns findings for names under `source`, `tables`, `groups`, `policies` and `types` that match
    nothing.

    Args:
        task: the task.
        source: its source.
        captured: the tables that it captures now.
        known: tables that it has or had. Settings for a table that the source no longer has are no mistake.
    """
    there = {*source.tables(["*.*"]), *captured}
    columns = _Columns(task, source, captured)
    found: list[Finding] = []
    for where, name in _named(task):
        column = "policies" in where or "types" in where
        table = columns.table(name) if column else None
        if table is not None:
            found += columns.findings(where, table, name.removeprefix(f"{table}."))
        else:
            found += () if name in known else _table(task, where, name, captured, there)
    return found


def _named(task: Task) -> Iterator[tuple[str, str]]:
    """Yields each setting that names tables or columns, with the name or pattern."""
    for where, names in (("source.tables", task.source.tables), ("source.exclude", task.source.exclude)):
        yield from ((where, name) for name in names)
    yield from (("tables", name) for name in task.tables)
    for group, settings in task.groups.items():
        yield from ((f"groups.{group}", name) for name in settings.tables)
    yield from (("policies", name) for name in task.policies)
    yield from (("types", name) for name in task.types)


def _table(
    task: Task, where: str, name: str, captured: Collection[str], there: Collection[str]
) -> Iterator[Finding]:
    excluding = where == "source.exclude"
    found = fitting(there, name)
    left_out = [t for t in found if t not in captured and fits(t, *task.source.exclude)]
    if not excluding and left_out and left_out == found:
        what = f"`source.exclude` leaves out {name if name in there else f'all tables that match {name}'}"
        yield Finding("warning", what, where, "remove it from there, or from the other setting")
    elif is_pattern(name):
        if not (found if excluding else fitting(captured, name)):
            cure = meant_tables(name, captured) or "this is fine if its tables are still to be created"
            tables, _, column = name.rpartition(".")
            of_table = column != "*" and bool(fitting(captured, tables))
            columns = where == "types" or (where == "policies" and of_table)
            if columns:  # nothing would be said of values that are to be left out
                cure = "name each column in full, schema.table.column"
            yield Finding("error" if columns else "warning", f"no table matches {name}", where, cure)
    elif name not in there:
        yield Finding("error", f"there is no table {name}", where, meant(name, there) or _ELSE)
    elif name not in captured and not excluding:
        cure = "add it to `source.tables`, or use `tailrace add`; otherwise remove it from the task file"
        yield Finding("warning", f"{name} is not captured by this task", where, cure)


class _Columns:
    """The columns that captured tables have or had; read when needed."""

    def __init__(self, task: Task, source: LogSource, captured: Sequence[str]) -> None:
        self._task, self._source, self._captured = task, source, set(captured)
        self._history: Mapping[str, Sequence[log.Layout]] = log.history(task.relations_path)
        self._there: dict[str, list[str]] = {}

    def table(self, name: str) -> str | None:
        """Returns the captured table that the name of a column begins with."""
        mine = [t for t in self._captured if name.startswith(f"{t}.")]
        return max(mine, key=len, default=None)

    def findings(self, where: str, table: str, column: str) -> Iterator[Finding]:
        if table not in self._there:
            layouts = [self._source.relation(table), *(one.relation for one in self._history.get(table, ()))]
            self._there[table] = sorted({c.name for one in layouts for c in one.columns})
        if column not in self._there[table]:
            cure = meant(column, self._there[table]) or _ELSE
            yield Finding("error", f"{table} has no column {column}", where, cure)
        elif where == "policies":
            yield from self._renamed(table, column)

    def _renamed(self, table: str, column: str) -> Iterator[Finding]:
        now = self._source.relation(table)
        level = self._task.policy(table).columns[column]
        for name, was in policy(self._task, table, now).renamed.get(now, {}).items():
            if was == column:
                what = f"column {name!r} of {table} keeps level {level}: it was called {column!r} before"
                cure = f"to give it another level, name it (`{table}.{name}: 3`)"
                yield Finding("warning", what, "policies", cure)
