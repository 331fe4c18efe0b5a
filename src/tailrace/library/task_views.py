"""A task's tables in DuckDB: targets, change tables, TRACKING and the key log as views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ..apply.mapping.table_map import task_map
from ..config.task import Task
from ..lake import delta as lake
from ..query.duck import connected as opened
from ..state.orders import of_task, target_names

if TYPE_CHECKING:
    import duckdb

CHANGES = "__ct"
"""What the name of a change table's view ends with."""


def connected(task: Task, tables: Sequence[str]) -> duckdb.DuckDBPyConnection:
    """A connection of its own with views of the tables as they are now, which read only the columns and files
    that a statement needs: `schema.table`, the target where it is a Delta table; `schema.table__ct`, the
    change table; `tracking`; `keylog`. A function `columns_changed('schema.table', mask)` gives the names of
    the columns in a mask of that change table.

    Raises:
        UnsupportedError: DuckDB is not installed.
    """
    connection = opened()
    names: dict[str, list[str]] = {}
    for number, (name, path) in enumerate(places(task, tables)):
        schema, _, table = name.rpartition(".")
        arrow = f"tailrace_{number}"
        if name.endswith(CHANGES):
            names[name.removesuffix(CHANGES)] = [f.name for f in DeltaTable(path).schema().fields]
        connection.register(arrow, lake.dataset(DeltaTable(path)))
        if schema:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        place = f"{_quoted(schema)}.{_quoted(table)}" if schema else _quoted(table)
        connection.execute(f"CREATE VIEW {place} AS SELECT * FROM {arrow}")
    connection.execute(_COLUMNS_CHANGED.format(names=_map(names)))
    return connection


def places(task: Task, tables: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each view's name and Delta table, of those that are there."""
    return ((name, path) for name, path in _named(task, tables) if lake.exists(path))


def _named(task: Task, tables: Sequence[str]) -> Iterator[tuple[str, str]]:
    renamed = target_names(of_task(task.orders_path, {}))
    targets = {renamed.get(t, task_map(task, t).target) for t in tables}
    if task.target.type == "delta":
        yield from ((t, task.target_path(t)) for t in sorted(targets))
    yield from ((t + CHANGES, task.changes_path(t)) for t in tables)
    yield "tracking", task.tracking_path
    yield "keylog", task.keylog_path


_COLUMNS_CHANGED = """
CREATE MACRO columns_changed(name, mask) AS CASE
    WHEN mask IS NULL THEN NULL
    WHEN octet_length(mask) = 0 THEN []::VARCHAR[]
    ELSE list_filter(
        {names}[name],
        lambda n, i:
            i <= 8 * octet_length(mask)
            AND get_bit(mask::BIT, greatest(8 * octet_length(mask) - i, 0)::INTEGER) = 1
    )
END
"""
"""Bit i - 1 of a mask, from its end, is the i-th column of its change table. A mask ends with its
last bit that is set; DuckDB asks for bits beyond it whatever the other condition says, hence `greatest`."""


def _map(names: dict[str, list[str]]) -> str:
    """Names as a literal of DuckDB's."""
    parts = [f"{_text(k)}: [{', '.join(map(_text, v))}]" for k, v in names.items()]
    return f"MAP {{{', '.join(parts)}}}" if parts else "MAP {'': ['']}"


def _text(said: str) -> str:
    return "'" + said.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
