"""Key log rows of the tokens that close the window of a baseline: `C`, or `#` for a stale token."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Protocol

import pyarrow as pa

from ..lake import delta as lake
from ..model.positions import BEFORE_ALL, ChangeNumber, ChangeRange
from ..model.sequence import TIME_DIGITS
from .key_log import SCHEMA, KeyLog

CLOSE, STALE = "C", "#"
_MODES_WITHOUT_TOKENS = ("off", "errors")
_ALL = "tailrace/tokens"
"""The pseudo-subscription whose progress is the last logged token."""


class Token(Protocol):
    """A token of this task, as recorded in LOG."""

    @property
    def table(self) -> str:
        """The table whose window it closes."""

    @property
    def number(self) -> int:
        """The change number of its record."""

    @property
    def change_seq(self) -> str:
        """The change sequence of its record."""

    @property
    def stale(self) -> bool:
        """Whether its baseline was started again meanwhile, so that it closes no window."""


def log_tokens(keylog: KeyLog, tokens: Sequence[Token]) -> int:
    """Logs the tokens that are not logged yet, one row each, and returns their number. They are visible after
    the next flush."""
    progress = keylog.state(_ALL).progress
    new = sorted((t for t in tokens if progress is None or t.number > progress), key=lambda t: t.number)
    if not new or keylog.mode in _MODES_WITHOUT_TOKENS:
        return 0
    numbers = ChangeRange(new[0].number - 1, new[-1].number)
    sort, now = keylog.reserve(_ALL, numbers).sort - numbers.lower, datetime.now(timezone.utc)
    rows = [
        {
            "run_id": keylog.run_of(t.table), "group_id": keylog.group_id, "subscription_id": t.table,
            "resync_state": int(t.change_seq[:TIME_DIGITS]), "change_row_counter": t.number,
            "change_row_timestamp": _second(t.change_seq), "change_row_nanosecond": 0,
            "change_row_type": CLOSE, "action_taken": STALE if t.stale else CLOSE,
            "flagged_count": keylog.state(t.table).flagged, "keylog_sort": sort + t.number,
            "keylog_ts": now, "insert_ts": now,
        }
        for t in new
    ]  # fmt: skip
    lake.create(keylog.path, SCHEMA)
    keylog.commit(_ALL, numbers.end, rows=pa.Table.from_pylist(rows, schema=SCHEMA))
    return len(rows)


def tokens_logged(path: str, app_id: str, mode: str) -> ChangeNumber | None:
    """Returns the change number of the last token in a task's key log; None if the mode logs no tokens."""
    if mode in _MODES_WITHOUT_TOKENS:
        return None
    progress = KeyLog(path, app_id=app_id, run_id="").state(_ALL).progress
    return BEFORE_ALL if progress is None else ChangeNumber(progress)


def _second(change_seq: str) -> datetime | None:
    """Returns the second in a change sequence's time part; None if it contains no time."""
    try:
        return datetime.strptime(change_seq[:14], "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
