"""The disk space of a task: by kind, its growth, and when the disk is full."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.operate import disk
from tailrace.operate.disk import DAY_S, measure, note

from .task_home import TaskHome, item, partly_applied

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return partly_applied(tmp_path)


def test_space_is_shown_by_kind(home: TaskHome) -> None:
    first = measure(home.task)
    home.applied([item(1, "d")], 16)
    use = measure(home.task)
    assert use.sizes["past"] > first.sizes["past"] > 0
    assert use.sizes["live"] > 0 and use.sizes["changes"] > 0
    assert use.total == sum(file.stat().st_size for file in home.file.parent.rglob("*") if file.is_file()) - (
        home.file.stat().st_size
    )
    assert (use.growth, use.days_left, use.warning) == (None, None, None)


def test_growth_is_measured_over_the_last_hours(home: TaskHome) -> None:
    before = measure(home.task)
    note(home.task, before, now=0.0)
    home.applied([item(1, "d")], 16)
    use = measure(home.task, now=6 * 3600.0)
    assert use.growth == pytest.approx((use.total - before.total) * 4)
    assert use.days_left == pytest.approx(use.free / use.growth)


def test_a_disk_that_is_full_within_a_week_is_a_warning(home: TaskHome) -> None:
    use = replace(measure(home.task), free=10 << 30, growth=float(5 << 30))
    assert use.warning is not None and use.warning.startswith(
        "the disk will be full in 2 days: 10.0 GiB are free"
    )
    assert replace(use, growth=float(1 << 30)).warning is None
    note(home.task, use, now=DAY_S)
    newest = disk.newest(home.task)
    assert newest is not None and newest.warning == use.warning


def test_status_shows_the_space_of_a_task(home: TaskHome) -> None:
    found = CliRunner().invoke(app, ["status", str(home.file), "--disk", "--json"], catch_exceptions=False)
    assert {*disk.KINDS} == {*json.loads(found.stdout)["disk"]["sizes"]}
    shown = CliRunner().invoke(app, ["status", str(home.file), "--disk"], catch_exceptions=False).stdout
    assert "targets, past versions" in shown and "its growth is not known yet" in shown
