"""Errors in a row of tables in groups with a limit, `<home>/control/errors`: so that a restart counts on.

Only ever added to, by the process that applies. Columns: `table`, `errors` (so many in a row, bigint; 0: its
changes were applied, or nobody tries any more), `what` (the last one), `at` (UTC).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa

from .. import lake

SCHEMA = pa.schema(
    [
        ("table", pa.string()), ("errors", pa.int64()), ("what", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Failing:
    """A table that is tried again: so many `errors` in a row, `what` the last one was, and when."""

    errors: int
    what: str
    at: dt.datetime


def failing(path: str) -> dict[str, Failing]:
    """The tables that are tried again."""
    if not lake.exists(path):
        return {}
    rows = sorted(lake.read(path).to_pylist(), key=lambda r: r["at"])
    newest = {r["table"]: Failing(r["errors"], r["what"], r["at"]) for r in rows}
    return {t: one for t, one in newest.items() if one.errors}


def note(path: str, table: str, errors: int, what: str = "") -> None:
    """Notes how many errors in a row a table has had; 0: none now."""
    row = {"table": table, "errors": errors, "what": what, "at": dt.datetime.now(dt.timezone.utc)}
    lake.append(path, pa.Table.from_pylist([row], SCHEMA))
