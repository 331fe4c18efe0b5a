"""Consecutive errors of tables in groups with a limit, `<home>/control/errors`: counted across restarts.

Only ever added to, by the process that applies. Columns: `table`, `errors` (so many in a row, bigint; 0: its
changes were applied, or nobody tries any more), `what` (the last one), `at` (UTC), `number` (1, 2, 3, ...: a
later row has a larger one; clocks can be set back).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa

from ..lake import delta as lake
from ..lake.failpoints import reach

SCHEMA = pa.schema(
    [
        ("table", pa.string()), ("errors", pa.int64()), ("what", pa.string()),
        ("at", pa.timestamp("us", "UTC")), ("number", pa.int64()),
    ]
)  # fmt: skip
APP = "tailrace/errors"


@dataclass(frozen=True)
class Failing:
    """A table that is retried: the number of consecutive `errors`, the last one (`what`), and when it
    happened."""

    errors: int
    what: str
    at: dt.datetime


def failing(path: str) -> dict[str, Failing]:
    """The tables that are retried."""
    if not lake.exists(path):
        return {}
    # Rows of an earlier release have no number.
    rows = sorted(lake.read(path).to_pylist(), key=lambda r: (r.get("number") or 0, r["at"]))
    newest = {r["table"]: Failing(r["errors"], r["what"], r["at"]) for r in rows}
    return {t: one for t, one in newest.items() if one.errors}


def note(path: str, table: str, errors: int, what: str = "") -> None:
    """Records the number of consecutive errors of a table; 0: none now."""
    now, last = dt.datetime.now(dt.timezone.utc), lake.progress(path, APP)
    number = max(last, 0) + 1
    row = {"table": table, "errors": errors, "what": what, "at": now, "number": number}
    reach("apply.errors")
    lake.append(path, pa.Table.from_pylist([row], SCHEMA), progress={APP: number}, after={APP: last})
