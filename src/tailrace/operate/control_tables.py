"""The control tables of a key log, in SQDR's shape: one row per key.

They are in the key log's folder under their own names (`groups`, `subscriptions`, `ir_subscription`,
`statistic`) when the key log is called `ir_keylog`. Next to one of another name, that name precedes theirs
(`orders.statistic`), because another key log may be in the same folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from ..formats.sqdr.control import TABLES
from ..formats.sqdr.tables import KEYLOG
from ..model.types import arrow_type
from ..state.state_table import KeyedTable, Row


def path(keylog: str, name: str) -> str:
    """Returns the path of a control table.

    >>> path("/lake/ir_keylog", "statistic"), path("/lake/orders/", "statistic")
    ('/lake/statistic', '/lake/orders.statistic')
    """
    folder, _, last = keylog.rstrip("/").rpartition("/")
    return f"{folder or '.'}/{name if last == KEYLOG else f'{last}.{name}'}"


def schema(name: str) -> pa.Schema:
    """Returns the Arrow schema of a control table."""
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in TABLES[name].columns])


def table(keylog: str, name: str) -> KeyedTable:
    """Returns a control table of a key log."""
    return KeyedTable(path(keylog, name), schema(name), "control.change")


def rows(keylog: str, name: str) -> list[Row]:
    """Returns the rows of a control table; empty if it does not exist."""
    return table(keylog, name).rows()


def put(keylog: str, name: str, new: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows, or replaces the given values in existing rows (matched by the table's first column)."""
    wanted = [dict(r) for r in new]
    key = TABLES[name].columns[0].name

    def changed(have: list[Row]) -> list[Row]:
        by_key = {r[key]: r for r in have}
        for row in wanted:
            by_key[row[key]] = by_key.get(row[key], {}) | row
        return list(by_key.values())

    table(keylog, name).change(changed)
