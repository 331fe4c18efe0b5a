"""Monotonic times, which order the rows of a table."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pyarrow.compute as pc

from . import delta as lake


def now_after(path: str, column: str) -> datetime:
    """Returns the current time, or a microsecond after the greatest time in a table's column if the clock was
    set back.

    For tables to which only one process at a time adds rows.
    """
    now = datetime.now(timezone.utc)
    if not lake.exists(path):
        return now
    last = pc.max(lake.read(path, [column])[column]).as_py()
    return now if last is None or last < now else last + timedelta(microseconds=1)
