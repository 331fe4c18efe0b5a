"""The host's clock is set back by an hour: what is noted later still counts as newer."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.state import ddl, state_table
from tailrace.state.ddl import CatalogEvent

from .test_applied_files import World

pytestmark = pytest.mark.unit

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)


class Clock(dt.datetime):
    at = NOON

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        cls.at += dt.timedelta(seconds=1)
        return cls.at


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(state_table, "dt", SimpleNamespace(datetime=Clock, timezone=dt.timezone))
    Clock.at = NOON
    return Clock


def test_a_late_change_of_a_vendor_table_is_refused(tmp_path: Path, clock: type[Clock]) -> None:
    world = World(str(tmp_path))
    world.files["a"] = {1, 10}
    assert world.call("done") == [] and world.reached == 10
    clock.at -= dt.timedelta(hours=1)
    world.files["b"] = {20}
    assert world.call("done") == [] and world.reached == 20
    clock.at += dt.timedelta(hours=1)
    world.files["c"] = {15}
    assert world.call("done") == ["c (new)"]


def test_the_newest_decision_on_ddl_counts(tmp_path: Path, clock: type[Clock]) -> None:
    path, key = str(tmp_path), ("s.t", "1", "add_column", 3)
    ddl.record_decisions(path, [(key, "apply")])
    clock.at -= dt.timedelta(hours=1)
    ddl.record_decisions(path, [(key, "ignore")])
    assert ddl.decisions(path) == {key: "ignore"}


def test_events_of_an_idle_source_stay_in_order(tmp_path: Path, clock: type[Clock]) -> None:
    path = str(tmp_path)
    ddl.record_events(path, [CatalogEvent("s.t", 7, "rename_table", "1", "s.u")])
    clock.at -= dt.timedelta(hours=1)
    ddl.record_events(path, [CatalogEvent("s.t", 7, "rename_table", "1", "s.v")])
    found = ddl.events(path)
    assert ddl.wanted_names(found, {key: "apply" for _, key in ddl.keyed(found)}) == {"s.t": "s.v"}
