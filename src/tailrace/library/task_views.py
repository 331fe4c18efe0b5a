"""A task's tables in SQL: targets, change tables, TRACKING and the key log, as views in DuckDB."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ..apply.mapping.table_map import task_map
from ..config.task import Task
from ..errors import ConfigError, TailraceError
from ..lake.data_files import FileDataset
from ..lake.opened import open_table
from ..lake.table import LakeTables
from ..model.change import split
from ..query.duckdb_session import connect as opened
from ..query.duckdb_session import select_list
from ..state import lifecycle
from ..targets.delta.tables import DeltaTables
from ..targets.task_tables import target_tables
from .target_rows import refuse_features

if TYPE_CHECKING:
    import duckdb

CHANGES = "__ct"
"""The suffix of a change table's view."""
_PLACEHOLDER = "tailrace_left_out_"
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True)
class View:
    """A table of a task under its name in SQL.

    Attributes:
        name: `schema.table`, or a name alone.
        means: its description.
        path: the table's name, see `LakeTables`.
        changes_of: the table whose changes it has; None if it is not a change table.
        tables: the tables of its format.
    """

    name: str
    means: str
    path: str
    changes_of: str | None = None
    tables: LakeTables = field(default_factory=lambda: DeltaTables(""))

    @property
    def place(self) -> tuple[str, str]:
        """Schema and table; without a schema it is empty."""
        return split(self.name)

    def folded(self, default: str) -> tuple[str, str]:
        """Returns schema and table in lower case, as SQL compares them.

        Args:
            default: the schema of names without one.

        >>> View("Shop.Item", "", "").folded("main"), View("keylog", "", "").folded("main")
        (('shop', 'item'), ('main', 'keylog'))
        """
        schema, table = self.place
        return fold_case(schema or default), fold_case(table)


@dataclass(frozen=True)
class LeftOut:
    """A view that cannot be created, and the error for the statements that name it."""

    view: View
    why: TailraceError


def fold_case(name: str) -> str:
    """Returns a name with its ASCII letters in lower case; DuckDB's names ignore only their case."""
    return name.translate(_FOLDED)


def views(task: Task, tables: Sequence[str]) -> list[View]:
    """Returns the tables that exist."""
    return [one for one in _all_views(task, tables) if one.tables.exists(one.path)]


def unique_views(task: Task, found: Iterable[View], default: str) -> tuple[list[View], list[LeftOut]]:
    """Returns the views with unique names, and the others.

    Args:
        default: the schema of names without one.
    """
    of: dict[tuple[str, str], list[View]] = {}
    for one in found:
        of.setdefault(one.folded(default), []).append(one)
    alone = [same[0] for same in of.values() if len(same) == 1]
    return alone, [LeftOut(one, _ambiguous(task, same)) for same in of.values() if same[1:] for one in same]


def _ambiguous(task: Task, same: Sequence[View]) -> ConfigError:
    meanings = ", and ".join(sorted(one.means for one in same))
    return ConfigError(
        f"{same[0].name} has {len(same)} meanings in SQL, which ignores letter case: {meanings}",
        where=task.name,
        hint="use a table function, which takes the exact name: FROM current('schema.table'), "
        "FROM changes('schema.table')",
    )


class TaskViews:
    """A separate connection with views of a task's current tables, which read only the columns and files that
    a statement needs.

    The views are `schema.table`, the target if it is a Delta table; `schema.table__ct`, the change table;
    `tracking`; and `keylog`. A function `columns_changed('schema.table', mask)` returns the names of the
    columns in a mask of that change table.

    Raises:
        UnsupportedError: DuckDB is not installed.
    """

    def __init__(self, task: Task, tables: Sequence[str]) -> None:
        self.connection: duckdb.DuckDBPyConnection = opened()
        found = views(task, tables)
        there, self._left_out = unique_views(task, found, "main")
        for number, one in enumerate(there):
            try:
                self._show(one, f"tailrace_{number}")
            except TailraceError as error:
                self._left_out.append(LeftOut(one, error))
        self._stand_in()
        columns = {
            one.changes_of: [f.name for f in open_table(one.path).schema().fields]
            for one in found
            if one.changes_of is not None
        }
        self.connection.execute(_COLUMNS_CHANGED.format(names=_map(columns)))

    def why(self, error: Exception) -> TailraceError | None:
        """Returns why a statement fails that names a view which is left out; None if it names none."""
        found = re.search(rf"\b{_PLACEHOLDER}(\d+)\b", str(error))
        return self._left_out[int(found[1])].why if found else None

    def _show(self, one: View, rows: str) -> None:
        table = one.tables.open(one.path)
        refuse_features(table.unread, one.path, one.means)
        dataset = table.dataset()
        if isinstance(dataset, FileDataset):
            rows = self._union(dataset, rows)
        else:
            self.connection.register(rows, dataset)
        self._view(one, rows, select_list(dataset.schema))

    def _union(self, rows: FileDataset, name: str) -> str:
        """Registers files whose columns have different names; returns a subquery with the table's names."""
        selects = []
        for number, (part, columns) in enumerate(rows.parts()):
            self.connection.register(f"{name}_{number}", part)
            listed = (
                f"{_quoted(columns[one]) if one in columns else 'NULL'} AS {_quoted(one)}"
                for one in rows.schema.names
            )
            selects.append(f"SELECT {', '.join(listed)} FROM {name}_{number}")
        return f"({' UNION ALL '.join(selects)})"

    def _stand_in(self) -> None:
        """Creates views of missing tables in place of those left out; DuckDB's error has the missing table's
        name."""
        for number, left in enumerate(self._left_out):
            rows = f"{_PLACEHOLDER}{number}"
            self.connection.register(rows, pa.table({"left_out": pa.nulls(0)}))
            self._view(left.view, rows)
            self.connection.unregister(rows)

    def _view(self, one: View, rows: str, listed: str = "*") -> None:
        schema, table = (_quoted(part) for part in (one.place[0] or "main", one.place[1]))
        # With the catalog's name, because a schema may have the name of a catalog (`temp`).
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS memory.{schema}")
        self.connection.execute(
            f"CREATE VIEW IF NOT EXISTS memory.{schema}.{table} AS SELECT {listed} FROM {rows}"
        )


def _all_views(task: Task, tables: Sequence[str]) -> Iterator[View]:
    renamed = lifecycle.read(task).target_names
    targets = {renamed.get(t, task_map(task, t).target) for t in tables}
    if not task.target.database:
        known = target_tables(task)
        yield from (View(t, f"the target {t}", known.name(t), tables=known) for t in sorted(targets))
    yield from (View(t + CHANGES, f"the change table of {t}", task.changes_path(t), t) for t in tables)
    yield View("tracking", "TRACKING", task.tracking_path)
    yield View("keylog", "the key log", task.keylog_path)


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
"""Bit i - 1 of a mask, from its end, is the i-th column of its change table.

A mask ends with its last bit that is set. DuckDB evaluates `get_bit` also beyond it, hence `greatest`.
"""


def _map(names: dict[str, list[str]]) -> str:
    """Returns names as a DuckDB literal."""
    parts = [f"{_text(k)}: [{', '.join(map(_text, v))}]" for k, v in names.items()]
    return f"MAP {{{', '.join(parts)}}}" if parts else "MAP {'': ['']}"


def _text(said: str) -> str:
    return "'" + said.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
