"""A task's tables in DuckDB: targets, change tables, TRACKING and the key log as views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ..apply.table_map import task_map
from ..config.task import Task
from ..lake import delta as lake
from ..query.result import optional
from ..state.orders import of_task, target_names

if TYPE_CHECKING:
    import duckdb

CHANGES = "__ct"
"""What the name of a change table's view ends with."""


def connected(task: Task, tables: Sequence[str]) -> duckdb.DuckDBPyConnection:
    """A connection of its own with views of the tables as they are now, which read only the columns and files
    that a statement needs: `schema.table`, the target where it is a Delta table; `schema.table__ct`, the
    change table; `tracking`; `keylog`.

    Raises:
        UnsupportedError: DuckDB is not installed.
    """
    connection: duckdb.DuckDBPyConnection = optional("duckdb").connect()
    connection.execute("SET TimeZone = 'UTC'")
    for number, (name, path) in enumerate(_places(task, tables)):
        if not lake.exists(path):
            continue
        schema, _, table = name.rpartition(".")
        arrow = f"tailrace_{number}"
        connection.register(arrow, DeltaTable(path).to_pyarrow_dataset())
        if schema:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        place = f"{_quoted(schema)}.{_quoted(table)}" if schema else _quoted(table)
        connection.execute(f"CREATE VIEW {place} AS SELECT * FROM {arrow}")
    return connection


def _places(task: Task, tables: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each view's name and Delta table."""
    renamed = target_names(of_task(task.orders_path, {}))
    targets = {renamed.get(t, task_map(task, t).target) for t in tables}
    if task.target.type == "delta":
        yield from ((t, task.target_path(t)) for t in sorted(targets))
    yield from ((t + CHANGES, task.changes_path(t)) for t in tables)
    yield "tracking", task.tracking_path
    yield "keylog", task.keylog_path


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
