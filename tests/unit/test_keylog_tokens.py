"""Tokens that close the window of a baseline, in the key log."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import pytest

from tailrace.keylog.key_log import KeyLog
from tailrace.keylog.tokens import log_tokens
from tailrace.lake import delta as lake
from tailrace.model.sequence import make

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Seen:
    table: str
    number: int
    stale: bool = False

    @property
    def change_seq(self) -> str:
        return make(2026030112000000, self.number)


def test_tokens_are_logged_once_stale_ones_with_their_own_sign(tmp_path: Path) -> None:
    path = str(tmp_path / "ir_keylog")
    first, later = [Seen("s.a", 7), Seen("s.b", 9, stale=True)], Seen("s.b", 12)
    for tokens, new in ((first, 2), (first, 0), ([*first, later], 1)):
        log = KeyLog(path, app_id="t", run_id="r1")
        assert log_tokens(log, tokens) == new
    rows = sorted(lake.read(path).to_pylist(), key=lambda r: r["keylog_sort"])
    keys = ("subscription_id", "change_row_type", "action_taken", "change_row_counter", "result_row_count")
    assert [tuple(r[k] for k in keys) for r in rows] == [
        ("s.a", "C", "C", 7, None), ("s.b", "C", "#", 9, None), ("s.b", "C", "C", 12, None),
    ]  # fmt: skip
    assert len({r["keylog_sort"] for r in rows}) == 3
    assert rows[0]["change_row_timestamp"] == dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)
    assert log_tokens(KeyLog(str(tmp_path / "off"), app_id="t", run_id="r1", mode="off"), first) == 0
