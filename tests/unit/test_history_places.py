"""Places at which a kept history is asked, and before which it forgets."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from tailrace.engine.history_updates import HistoryRules
from tailrace.errors import ConfigError, PositionError, TailraceError, UnsupportedError
from tailrace.model.change import Column
from tailrace.query.history.table import HistoryTable

from .once import once
from .task_home import ITEM, TaskHome, at, position, seq

pytestmark = pytest.mark.unit

KEY = Column("id", 1, "integer", "int4", "int", key=True)
P = Column("p", 2, "text", "text", "string")
DATA = pa.schema([("id", pa.int64())])
NUMERIC = pa.decimal128(10, 2)
UTC = pa.timestamp("us", "UTC")
EVENT = {"id": [1], "__operation": ["U"]}


def keep(home: TaskHome, path: Path, **given: Any) -> HistoryTable:
    return tailrace.open(home.file).table(ITEM).keep_history(str(path / "kept"), **given)


NO_PLACES: dict[pa.DataType, list[object]] = {
    pa.int64(): ["x", 10.5, None, True, dt.date(1970, 1, 11), object()],
    NUMERIC: [1.008, Decimal("1.008")],
    UTC: [7],
    pa.float64(): [float("nan")],
}


@pytest.mark.parametrize("kind", NO_PLACES)
def test_a_place_that_is_no_value_of_the_sequence_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    history = HistoryTable.make(str(tmp_path / "h"), DATA, HistoryRules(("id",), ("id",)), kind)
    for place in NO_PLACES[kind]:
        for ask in (history.as_of, history.forget):
            with pytest.raises(ConfigError, match="not a value of the history's sequence"):
                ask(place)


@pytest.mark.parametrize(
    ("kind", "told", "places"),
    [
        (pa.int64(), 10, [10, 10.0]),
        (NUMERIC, Decimal("1.01"), [1.01, "1.01"]),
        (
            UTC,
            dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
            [dt.datetime(2026, 1, 2), "2026-01-02 00:00:00"],
        ),
    ],
)
def test_a_place_is_a_value_of_the_sequence(
    tmp_path: Path, kind: pa.DataType, told: object, places: list[object]
) -> None:
    history = HistoryTable.make(str(tmp_path / "h"), DATA, HistoryRules(("id",), ("id",)), kind)
    history.apply(pa.table({**EVENT, "__sequence": pa.array([told], kind)}))
    for place in places:
        assert len(history.as_of(place).rows()) == 1
        assert history.forget(place) == 0


@once
def renamed(folder: Path) -> TaskHome:
    """Row 1, whose p is `p1` at 10, and `v11` to `v15` from the changes of these numbers on."""
    home = TaskHome(folder, columns=[KEY, P])
    home.baseline([{"id": 1, "p": "p1"}], after=10)
    home.store(*[(n, "U", {"id": 1, "p": f"v{n}"}) for n in range(11, 16)])
    return home


@once
def kept(folder: Path) -> TaskHome:
    """The same, and its history without the row of before."""
    home = renamed(folder)
    keep(home, folder)
    return home


def test_a_history_is_asked_at_the_places_that_its_table_is_asked_at(tmp_path: Path) -> None:
    home = renamed(tmp_path)
    table = tailrace.open(home.file).table(ITEM)
    history = keep(home, tmp_path, base=table.as_of(10).table())
    for place in (
        10,
        12,
        "13",
        15,
        seq(12),
        at(13),
        at(13).replace(tzinfo=None),
        f"{at(14):%Y-%m-%d %H:%M:%S}",
    ):
        found = [r["p"] for r in history.as_of(place).rows()]
        assert found == [r["p"] for r in table.as_of(place).rows()] and len(found) == 1


def test_what_is_before_a_place_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    home = kept(tmp_path)
    history = keep(home, tmp_path)
    places: tuple[Any, ...] = (12, "13", seq(14), at(15))
    # The version of then began with 11, 12, 13 and 14, and stays.
    assert [history.forget(place) for place in places] == [0, 1, 1, 1]
    home.store((16, "U", {"id": 1, "p": "v16"}))
    history = keep(home, tmp_path)
    assert [r["p"] for r in history.current().rows()] == ["v16"]
    assert history.rejects().rows() == []


def test_what_a_history_has_not_reached_is_not_forgotten(tmp_path: Path) -> None:
    home = kept(tmp_path)
    history = keep(home, tmp_path)
    for place in (16, 30, seq(16), at(16)):
        with pytest.raises(PositionError):
            history.forget(place)
    wrong: dict[Any, type[TailraceError]] = dict.fromkeys(("x", None, 13.0, True), ConfigError)
    wrong[position(13)] = UnsupportedError
    for place, error in wrong.items():
        for ask in (history.forget, history.as_of):
            with pytest.raises(error):
                ask(place)
    home.store((16, "U", {"id": 1, "p": "v16"}))
    assert keep(home, tmp_path).rejects().rows() == []
