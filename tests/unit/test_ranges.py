"""Ranges whose end is before their start are refused, whatever kinds their places are of."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import product
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import ConfigError, PositionError
from tailrace.query.positions import PositionLike

from .task_home import ITEM, Row, TaskHome, at, position, seq

pytestmark = pytest.mark.unit

KINDS: dict[str, Callable[[int], PositionLike]] = {
    "number": int,
    "change_seq": seq,
    "position": position,
    "time": at,
}
PAIRS = list(product(KINDS, KINDS))
RANGES = ("changes", "net", "pairs", "history", "rebuild", "transactions", "net_changes")


def item(id: int, name: str = "a") -> Row:
    return {"id": id, "name": name, "price": Decimal("1.00")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> TaskHome:
    """A row in the baseline, up to 10; changes 12, 13 and 16, others are other tables'. Nobody writes to it."""
    made = TaskHome(tmp_path_factory.mktemp("shop"))
    made.baseline([item(1)], after=10)
    made.store((12, "U", item(1, "b")))
    made.store((13, "U", item(1, "c")), (16, "I", item(2)))
    return made


@pytest.fixture(scope="module")
def table(home: TaskHome) -> tailrace.TaskTable:
    return tailrace.open(home.file).table(ITEM)


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_an_end_before_the_start_is_refused(table: tailrace.TaskTable, start: str, end: str) -> None:
    for low, high in ((16, 12), (16, 13), (14, 12), (13, 12), (13, 11), (99, 13)):
        with pytest.raises(ConfigError, match="pass the older position first"):
            table.changes(KINDS[start](low), KINDS[end](high))


@pytest.mark.parametrize(("start", "end"), [("number", "number"), ("time", "position")])
def test_each_question_refuses_it(home: TaskHome, table: tailrace.TaskTable, start: str, end: str) -> None:
    low, high = KINDS[start](16), KINDS[end](12)
    for question in RANGES:
        with pytest.raises(ConfigError, match="pass the older position first"):
            getattr(table, question)(low, high)
    with pytest.raises(ConfigError, match="is before"):
        tailrace.open(home.file).transactions(low, high)
    with pytest.raises(ConfigError, match="is before"):
        table.chain({"id": 1}, low, high)


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_diff_refuses_an_end_before_the_start(table: tailrace.TaskTable, start: str, end: str) -> None:
    """Each range for some pairs of kinds: `changes` looks at the places in the same way, and has them all."""
    ranges = ((16, 12), (16, 13), (14, 12), (13, 12), (13, 11))
    low, high = ranges[PAIRS.index((start, end)) % len(ranges)]
    with pytest.raises(ConfigError, match="pass the older position first"):
        table.diff(KINDS[start](low), KINDS[end](high))


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_a_range_without_changes_is_an_empty_answer(table: tailrace.TaskTable, start: str, end: str) -> None:
    for low, high in ((14, 15), (14, 14), (11, 11), (17, 18)):
        assert table.changes(KINDS[start](low), KINDS[end](high)).rows() == []
    ranges = ((13, 15), (13, 13), (14, 14), (14, 15), (16, 16), (11, 11))
    low, high = ranges[PAIRS.index((start, end)) % len(ranges)]
    assert table.diff(KINDS[start](low), KINDS[end](high)).rows() == []


@pytest.mark.parametrize("question", RANGES)
def test_each_question_answers_it(table: tailrace.TaskTable, question: str) -> None:
    for low, high in ((14, at(15)), (11, 11)):
        assert getattr(table, question)(low, high).rows() == []


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_a_range_of_one_change_is_that_change(table: tailrace.TaskTable, start: str, end: str) -> None:
    assert [r["name"] for r in table.changes(KINDS[start](13), KINDS[end](13)).rows()] == ["c"]


def test_kinds_that_no_change_tells_apart_are_an_empty_answer(table: tailrace.TaskTable) -> None:
    """Nothing of the table was committed between 13 and 16: 15 may be before the time of 14."""
    assert table.net(15, at(14)).rows() == []
    assert table.net(at(15), 14).rows() == []
    with pytest.raises(ConfigError, match="14 is before 15"):
        table.net(15, 14)


def test_a_change_within_the_time_of_the_start_is_no_end_of_a_difference(tmp_path: Path) -> None:
    """Two changes of one hundredth of a second: as of that time both are done, as of the first one is not."""
    home = TaskHome(tmp_path)
    home.baseline([item(1)], after=10)
    both = seq(11)[:16]
    home.store((11, "U", item(1, "b")), (12, "U", item(1, "c") | {"header__change_seq": both + seq(12)[16:]}))
    table = tailrace.open(home.file).table(ITEM)
    for first in (11, seq(11), position(11)):
        with pytest.raises(ConfigError, match="pass the older position first"):
            table.diff(at(11), first)
    for last in (12, both + seq(12)[16:], position(12)):
        assert table.diff(at(11), last).rows() == []
    assert [r["name"] for r in table.diff(11, at(11)).rows()] == ["b", "c"]
    assert [r["name"] for r in table.changes(at(11), 11).rows()] == ["b"]


def test_an_end_before_the_baseline_is_refused_as_as_of_refuses_it(table: tailrace.TaskTable) -> None:
    for end in (at(9), position(9)):
        with pytest.raises(PositionError, match="before the baseline"):
            table.diff(10, end)


def test_a_change_table_of_no_task_refuses_them_too(home: TaskHome) -> None:
    alone = tailrace.read(home.task.changes_path(ITEM), key=["id"])
    with pytest.raises(ConfigError, match="12 is before 2026-11-22 10:00:16"):
        alone.net(at(16), 12)
    with pytest.raises(ConfigError, match="is before 16"):
        alone.net(16, at(12))
