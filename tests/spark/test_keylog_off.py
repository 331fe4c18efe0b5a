"""`keylog: {mode: off}` for a while: set again, the key log goes on behind what its targets have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.apply.task_rules import TableRules, TaskRules
from tailrace.engine.rules import MODES, Rules
from tailrace.lake import delta as lake

from .rules_model import Change
from .rules_task import Staged, by_shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def insert(number: int) -> Change:
    return Change(number, "I", None, {"lane": 0, "id": f"k{number}", "a": number, "b": "x"})


def numbers(task: Staged, table: str) -> list[int]:
    return [number for number, *_ in task.logged(table)]


@pytest.mark.parametrize(
    ("modes", "jobs"),
    [
        pytest.param(list(MODES), False, id="in one task"),
        pytest.param(["strict"], True, id="by shards", marks=pytest.mark.slow),
    ],
)
def test_changes_that_were_applied_while_it_was_off_do_not_come_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes: list[str], jobs: bool
) -> None:
    if jobs:
        by_shards(monkeypatch)
    # The number of a table's changes ends with its place, for no two tables have the same.
    places = {f"s.{mode}": place for place, mode in enumerate(modes, 1)}
    task = Staged(spark, tmp_path, {f"s.{mode}": TableRules(Rules.of(mode)) for mode in modes})
    task.put({t: [insert(10 + k)] for t, k in places.items()})
    task.catch_up()
    task.keylog = "off"
    task.put({t: [insert(20 + k), insert(30 + k)] for t, k in places.items()})
    task.catch_up()
    reached = {t: lake.progress(task.log, f"t/keylog/{t}") for t in places}
    assert reached == dict.fromkeys(places, 30 + len(places))
    task.keylog = "all"
    task.put({t: [insert(40 + k)] for t, k in places.items()})
    task.catch_up()
    assert {t: numbers(task, t) for t in places} == {t: [10 + k, 40 + k] for t, k in places.items()}
    assert {t: len(task.rows(t)) for t in places} == dict.fromkeys(places, 4)


def test_what_a_crash_kept_from_it_is_told_of_once_it_is_off(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = Staged(spark, tmp_path, {"s.t": TableRules(Rules.of("strict"))})
    task.put({"s.t": [insert(1)]})
    task.catch_up()
    task.put({"s.t": [insert(2), insert(3)]})
    with monkeypatch.context() as patch:
        patch.setattr(TaskRules, "flush", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            task.catch_up(run="2")
    task.keylog = "off"
    task.put({"s.t": [insert(4)]})
    task.catch_up(run="3")
    told = [r.getMessage() for r in caplog.records if "never logged" in r.getMessage()]
    assert told == [
        "s.t: its target has changes 2 to 3, but the key log does not have them and is off: they are never logged"
    ]
    task.keylog = "all"
    task.put({"s.t": [insert(5)]})
    task.catch_up(run="4")
    assert (numbers(task, "s.t"), len(task.rows("s.t"))) == ([1, 5], 5)
