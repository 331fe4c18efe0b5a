"""What a key log says of the tokens that close the window of a baseline: `C`, and `#` of a stale one."""

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
_WITHOUT = ("off", "errors")
_ALL = "tailrace/tokens"
"""Under this name, as if it were a subscription's, a key log keeps which tokens it has."""


class Token(Protocol):
    """A token of this task, as it stands in LOG."""

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
        """Whether its baseline was begun again meanwhile: it closes nothing."""


def log_tokens(keylog: KeyLog, tokens: Sequence[Token]) -> int:
    """Logs the tokens that are not logged yet, one row each; gives how many. Visible at the next flush."""
    reached = keylog.standing(_ALL).reached
    new = sorted((t for t in tokens if reached is None or t.number > reached), key=lambda t: t.number)
    if not new or keylog.mode in _WITHOUT:
        return 0
    numbers = ChangeRange(new[0].number - 1, new[-1].number)
    sort, now = keylog.reserve(_ALL, numbers).sort - numbers.lower, datetime.now(timezone.utc)
    rows = [
        {
            "run_id": keylog.run_of(t.table), "group_id": keylog.group_id, "subscription_id": t.table,
            "resync_state": int(t.change_seq[:TIME_DIGITS]), "change_row_counter": t.number,
            "change_row_timestamp": _second(t.change_seq), "change_row_nanosecond": 0,
            "change_row_type": CLOSE, "action_taken": STALE if t.stale else CLOSE,
            "flagged_count": keylog.standing(t.table).flagged, "keylog_sort": sort + t.number,
            "keylog_ts": now, "insert_ts": now,
        }
        for t in new
    ]  # fmt: skip
    lake.create(keylog.path, SCHEMA)
    keylog.commit(_ALL, numbers.end, rows=pa.Table.from_pylist(rows, schema=SCHEMA))
    return len(rows)


def tokens_logged(path: str, app_id: str, mode: str) -> ChangeNumber | None:
    """The change number up to which a task's key log has its tokens; None: it tells of none."""
    if mode in _WITHOUT:
        return None
    reached = KeyLog(path, app_id=app_id, run_id="").standing(_ALL).reached
    return BEFORE_ALL if reached is None else ChangeNumber(reached)


def _second(change_seq: str) -> datetime | None:
    """The second in a change sequence's time part; None when it tells no time."""
    try:
        return datetime.strptime(change_seq[:14], "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
