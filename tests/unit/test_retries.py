"""Errors in a row of tables, as a restart finds them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.state import lifecycle, state_table

pytestmark = pytest.mark.unit

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def test_the_last_note_counts_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([NOON, NOON - dt.timedelta(hours=1)])
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda _: next(times)), timezone=dt.timezone)
    monkeypatch.setattr(state_table, "dt", clock)
    path = str(tmp_path / "errors")
    lifecycle.record_failure(path, "s.a", 2, "the disk is full")
    lifecycle.record_failure(path, "s.a", 0)
    assert lifecycle.failures(path) == {}
