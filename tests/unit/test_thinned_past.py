"""`as_of` over a target whose past was thinned: at every position, the same as with all versions."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import pytest

import tailrace
from tailrace.lake import log_retention
from tailrace.lake.thinning import Past, thin

from .task_home import ITEM, TaskHome, at, item, position, rows, seq

pytestmark = pytest.mark.unit
HOUR, MANY = 3600.0, 60


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    """Sixty changes of ten keys, five a batch, two batches an hour; the last batch is stored only."""
    made, random, state = TaskHome(tmp_path), Random(7), dict[int, str]()
    made.baseline([], after=0)
    target = Path(made.task.target_path(ITEM))
    for file in target.glob("_delta_log/*[0-9].json"):
        os.utime(file, (time.time() - 7 * HOUR,) * 2)
    for first in range(1, MANY + 1, 5):
        changes = []
        for number in range(first, first + 5):
            key, name = random.randrange(10), f"v{number}"
            oper = "I" if key not in state else random.choice("UD")
            changes.append((number, oper, item(key, name)))
            state.pop(key) if oper == "D" else state.update({key: name})
        made.store(*changes)
        if first + 5 <= MANY:
            made.applied([item(k, v) for k, v in sorted(state.items())], first + 4)
            age = (MANY - first) / 10 * HOUR
            newest = max(target.glob("_delta_log/*[0-9].json"))
            os.utime(newest, (time.time() - age,) * 2)
    return made


def answers(home: TaskHome, numbers: range) -> dict[int, list[tuple[int, str]]]:
    """The rows at change numbers, each of which is named in one of four ways."""
    table, places = tailrace.open(home.file).table(ITEM), (int, seq, position, at)
    return {n: sorted(rows(table.as_of(places[n % 4](n)))) for n in numbers}


def test_as_of_is_the_same_at_each_position_after_the_past_was_thinned(home: TaskHome) -> None:
    """Each third number is at every index of a batch, and is named in every way."""
    numbers = range(1, MANY + 1, 3)
    path, before = home.task.target_path(ITEM), answers(home, numbers)
    versions = log_retention.versions(path)
    assert thin(path, Past(7 * 24 * HOUR, times=100)) > 3
    assert answers(home, numbers) == before
    assert thin(path, Past(7 * 24 * HOUR, times=0)) > 0
    assert len(log_retention.versions(path)) < len(versions) / 2
    table = tailrace.open(home.file).table(ITEM)
    kept = [n for n in numbers if n >= 50]
    assert [sorted(rows(table.as_of(n))) for n in kept] == [before[n] for n in kept]


def test_as_of_needs_no_changes_at_the_end_of_a_batch_whose_version_is_kept(home: TaskHome) -> None:
    numbers = range(5, 51, 5)
    path, before = home.task.target_path(ITEM), answers(home, numbers)
    thin(path, Past(7 * 24 * HOUR, times=100))
    home.forget(52)
    table, answered = tailrace.open(home.file).table(ITEM), 0
    for number in numbers:
        try:
            found = sorted(rows(table.as_of(number)))
        except tailrace.TailraceError:
            continue
        answered += 1
        assert found == before[number]
    assert answered >= 5
