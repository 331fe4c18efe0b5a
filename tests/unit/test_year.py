"""A task that ran for a year is looked at as fast as a new one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.config.task import Task, load
from tailrace.operate.status import Status, status
from tailrace.state.retention import trim_batches
from tailrace.testing.year import Year, settled

BENCH = Path(__file__).parents[2] / "bench" / "year.py"
SMALL = Year(batches=3650, tables=7, in_a_batch=3, tail=2, commits=5)


def task(folder: Path) -> Task:
    (folder / "year.yaml").write_text("name: year\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    return load(folder / "year.yaml")


def timeless(found: Status) -> Status:
    """The same without what grows with the clock."""
    return replace(found, tables=[replace(t, seconds_behind=0.0) for t in found.tables])


@pytest.mark.unit
def test_a_small_year_is_what_it_says(tmp_path: Path) -> None:
    made = task(tmp_path)
    settled(made, SMALL)
    found = status(made)
    assert (found.captured, found.stored, found.applied) == (73_000,) * 3
    assert [t.state for t in found.tables] == ["paused"] + ["stopped"] * 6
    assert sum(t.stored for t in found.tables) == 7 * 40_000 + 2 * 3 * 4
    trim_batches(made, {})
    assert timeless(status(made)) == timeless(found)


@pytest.mark.slow
def test_a_year_of_two_million_batches_takes_what_a_week_takes(tmp_path: Path) -> None:
    def step(name: str, batches: int) -> dict[str, float]:
        home = tmp_path / str(batches)
        home.mkdir(exist_ok=True)
        words = [sys.executable, str(BENCH), "--home", str(home), "--step", name, "--batches", str(batches)]
        found = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return json.loads(found)  # type: ignore[no-any-return]

    year, week = 2_000_000, 38_000
    step("make", year), step("make", week)
    for name, told in (("status", "status_cpu_ms"), ("start", "applier_cpu_ms")):
        one, other = step(name, year), step(name, week)
        assert one[told] < 3 * other[told] and one["memory_mb"] < 500, name
