"""The control tables of a key log: small Delta tables, one row per key, always written as a whole.

They stand in the key log's folder under their own names (`groups`, `subscriptions`, `ir_subscription`,
`statistic`) when the key log is called `ir_keylog`; next to one of another name, that name stands before
theirs (`orders.statistic`), because another key log may be in the same folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from ..errors import ConfigError
from ..formats.sqdr.control import TABLES
from ..formats.sqdr.tables import KEYLOG
from ..lake import delta as lake
from ..lake import log_retention
from ..lake.failpoints import reach
from ..model.types import arrow_type

Row = dict[str, Any]
_TRIES = 20
_TIDY_EVERY = 50


def path(keylog: str, name: str) -> str:
    """Path of a control table.

    >>> path("/lake/ir_keylog", "statistic"), path("/lake/orders/", "statistic")
    ('/lake/statistic', '/lake/orders.statistic')
    """
    folder, _, last = keylog.rstrip("/").rpartition("/")
    return f"{folder or '.'}/{name if last == KEYLOG else f'{last}.{name}'}"


def schema(name: str) -> pa.Schema:
    """The Arrow schema of a control table."""
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in TABLES[name].columns])


def rows(keylog: str, name: str) -> list[Row]:
    """The rows of a control table; empty if it does not exist."""
    return _read(path(keylog, name))[1]


def put(keylog: str, name: str, new: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows, or replaces the given values in existing rows (matched by the table's first column)."""
    wanted = [dict(r) for r in new]
    key = TABLES[name].columns[0].name

    def changed(have: list[Row]) -> list[Row]:
        by_key = {r[key]: r for r in have}
        for row in wanted:
            by_key[row[key]] = by_key.get(row[key], {}) | row
        return list(by_key.values())

    change(keylog, name, changed)


def change(keylog: str, name: str, work: Callable[[list[Row]], list[Row]]) -> None:
    """Replaces a control table's rows by the result of `work`; writes nothing if they are the same.

    Another writer's commit in between makes it begin anew, with that one's rows.

    Raises:
        ConfigError: others write to it all the time.
    """
    place, columns = path(keylog, name), schema(name)
    lake.create(place, columns)
    for _ in range(_TRIES):
        version, have = _read(place)
        made = work([dict(r) for r in have])
        if made == have:
            return
        files = lake.write_part(place, pa.Table.from_pylist(made, schema=columns))
        reach("control.change")
        done = lake.overwrite(place, files, schema=columns, progress={}, only_after=version)
        if done is not None:
            if done % _TIDY_EVERY == 0:  # each commit leaves the file of the previous one
                log_retention.tidy(place)
            return
    raise ConfigError("the control table is constantly being written by other processes", where=place)


def _read(place: str) -> tuple[int, list[Row]]:
    if not lake.exists(place):
        return -1, []
    version, found = lake.read_at(place)
    return version, found.to_pylist()
