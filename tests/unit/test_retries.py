"""Errors in a row of tables, as a restart finds them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tailrace.lake import delta as lake
from tailrace.state import retries

pytestmark = pytest.mark.unit

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def test_the_last_note_counts_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([NOON, NOON - dt.timedelta(hours=1)])
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda _: next(times)), timezone=dt.timezone)
    monkeypatch.setattr(retries, "dt", clock)
    path = str(tmp_path / "errors")
    retries.note(path, "s.a", 2, "the disk is full")
    retries.note(path, "s.a", 0)
    assert retries.failing(path) == {}


def test_notes_of_an_earlier_release_come_before_all_others(tmp_path: Path) -> None:
    path = str(tmp_path / "errors")
    old = pa.schema([f for f in retries.SCHEMA if f.name != "number"])
    lake.append(path, pa.Table.from_pylist([{"table": "s.a", "errors": 3, "what": "x", "at": NOON}], old))
    assert retries.failing(path)["s.a"].errors == 3
    retries.note(path, "s.a", 4, "y")
    assert (retries.failing(path)["s.a"].errors, retries.failing(path)["s.a"].what) == (4, "y")
