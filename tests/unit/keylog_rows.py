"""Key log rows for tests: what is not said is as usual."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace.formats.sqdr.tables import KEYLOG_TABLE
from tailrace.lake import delta as lake
from tailrace.model.types import arrow_type

SCHEMA = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in KEYLOG_TABLE.columns])
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)


def row(sort: int, run: str = "r1", table: str = "s.t", oper: str = "I", **more: Any) -> dict[str, Any]:
    """A row whose change was made `sort` seconds after noon, and logged half a second later."""
    at = NOON + dt.timedelta(seconds=sort)
    key = more.pop("key", f'id="{sort}"')
    action = {"U": "M"}.get(oper, oper)
    return {
        "run_id": run, "group_id": "g", "subscription_id": table, "resync_state": 2026030112000000,
        "change_row_counter": sort, "change_row_timestamp": at, "change_row_nanosecond": 0,
        "change_row_type": oper, "action_taken": action, "result_row_count": None if oper == "T" else 1,
        "flagged_count": 0, "before_key": key if oper in "UD" else None, "keylog_sort": sort,
        "keylog_ts": at + dt.timedelta(milliseconds=500), "insert_ts": at,
        "after_image": f'<Dest>"s"."t"</Dest><row>{key} v="x"</row>' if oper in "IU" else None, **more,
    }  # fmt: skip


def missed(sort: int, **more: Any) -> dict[str, Any]:
    """An update that hit nothing."""
    why = "update_missing: the row to be updated does not exist"
    return row(sort, oper="U", **{"result_row_count": 0, "result_error": why, "flagged_count": 1} | more)


def write(folder: Path, *appends: list[dict[str, Any]]) -> str:
    """A key log, one file an append; gives its path."""
    path = str(folder / "ir_keylog")
    lake.create(path, SCHEMA)
    for rows in appends:
        lake.append(path, pa.Table.from_pylist(rows, schema=SCHEMA))
    return path
