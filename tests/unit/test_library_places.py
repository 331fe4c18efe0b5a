"""Places at which a table's rows can be told: not before its baseline, and not later than what is stored."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import PositionError
from tailrace.query.positions import PositionLike, PositionRange

from .task_home import ITEM, TaskHome, at, item, partly_applied, position, rows, seq

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return partly_applied(tmp_path)


def test_places_before_the_baseline_are_refused(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    for place in (9, seq(9), at(9), position(9)):
        with pytest.raises(PositionError, match="before the baseline"):
            table.as_of(place)


def test_places_after_the_baseline_are_refused_as_long_as_no_change_is_stored(tmp_path: Path) -> None:
    made = TaskHome(tmp_path)
    made.baseline([item(1, "a")], after=10)
    table = tailrace.open(made.file).table(ITEM)
    for place in (11, 20261122, seq(30), position(12), "F" * 40):
        with pytest.raises(
            PositionError, match="is not stored yet; no change is stored; the baseline is up to"
        ):
            table.as_of(place)
        with pytest.raises(PositionError, match="is not stored yet"):
            table.diff(10, place)
        with pytest.raises(PositionError, match="is not stored yet"):
            tailrace.open(made.file).cut(place)
    for place in (10, at(30), position(11)):
        assert rows(table.as_of(place)) == [(1, "a")]


def test_a_place_before_a_change_that_the_baseline_has_is_refused_whatever_the_hosts_clock_says(
    tmp_path: Path,
) -> None:
    """LOG had 10 when the baseline began, whose rows have 11, too. The source's clock is five seconds ahead: the baseline of what there was at 10 was finished at 5."""
    made = TaskHome(tmp_path)
    made.store((8, "U", item(1, "b")), (10, "U", item(1, "c")), (11, "U", item(1, "d")))
    made.baseline([item(1, "d")], after=10, finished_at=at(5), position=position(12))
    table = tailrace.open(made.file).table(ITEM)
    for place in (at(4), at(7), at(8), at(10), 10, seq(10), position(10)):
        for ask in (table.as_of, table.diff):
            said = rf"before the baseline of shop.item \(with the changes up to change_seq {seq(11)}\)"
            with pytest.raises(PositionError, match=said):
                ask(place)
    with pytest.raises(PositionError, match="before the baseline"):
        table.as_of(11)  # there may be a change between it and the baseline that is not stored yet
    made.captured(13, 12)
    with pytest.raises(PositionError, match="before the baseline"):
        table.as_of(11)
    made.captured(13, 11)  # LOG is past the baseline, and all that it has is stored
    assert rows(table.as_of(11)) == [(1, "d")]
    made.store((12, "U", item(1, "e")))
    table = tailrace.open(made.file).table(ITEM)
    for place in (at(11), 11, seq(11)):
        assert rows(table.as_of(place)) == [(1, "d")]
    assert rows(table.as_of(at(12))) == [(1, "e")]


@pytest.mark.parametrize(
    "end", [dt.datetime.max, "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-01:00"], ids=str
)
def test_the_end_of_time_is_behind_all_changes(home: TaskHome, end: PositionLike) -> None:
    table = tailrace.open(home.file).table(ITEM)
    assert rows(table.as_of(end)) == rows(table.current())
    assert table.changes(None, end).rows() == table.changes().rows()
    assert table.changes(end).rows() == []


def test_the_beginning_of_time_is_before_all_changes(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    assert table.changes("0001-01-01T00:00:00+02:00").rows() == table.changes().rows()


def test_places_may_be_now_durations_before_now_and_postgresql_positions(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    assert rows(table.as_of("now")) == rows(table.current())
    assert len(table.net("20000d", "0s")) == len(table.net("20000d", "now")) == len(table.net())
    assert table.net("now").table().num_rows == 0
    with pytest.raises(PositionError, match="before the baseline"):
        table.as_of("20000d")
    assert rows(table.as_of("0/0")) == rows(table.current())  # the first 16 digits of all positions here
    with pytest.raises(PositionError, match="1/A0 is not stored yet"):
        table.as_of("1/A0")
    lsn = PositionRange.of("1/a0")
    assert (lsn.low[:16], lsn.high[:17]) == ("00000001000000A0", "00000001000000A0F")


def test_a_time_is_exact_in_any_year() -> None:
    """As numbers of floating point, seconds since 1970 are not from 2038 on."""
    times = [dt.datetime(2039, 11, 22, 10, 0, 0, 10_000 * n) for n in range(100)]
    assert [PositionRange.of(at).low[14:16] for at in times] == [f"{n:02d}" for n in range(100)]
