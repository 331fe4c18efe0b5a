"""Places before a table's newest baseline: the target's versions of before it still have them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import PositionError
from tailrace.lake import delta as lake

from .once import once
from .task_home import ITEM, TaskHome, item, rows

pytestmark = pytest.mark.unit


@once
def resynced(folder: Path) -> TaskHome:
    """Rows 1 and 2, changes 11 to 14 of which 13 and 14 are only stored, then a new baseline after 14."""
    home = TaskHome(folder)
    home.baseline([item(1), item(2)], after=10)
    home.store((11, "U", item(1, "b")), (12, "I", item(3)))
    home.applied([item(1, "b"), item(2), item(3)], 12)
    home.store((13, "D", item(2)), (14, "U", item(1, "c")))
    home.baseline([item(1, "c"), item(3)], after=14, number=2)
    return home


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return resynced(tmp_path)


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (10, [(1, "a"), (2, "a")]),
        (11, [(1, "b"), (2, "a")]),
        (12, [(1, "b"), (2, "a"), (3, "a")]),
        (13, [(1, "b"), (3, "a")]),
        (14, [(1, "c"), (3, "a")]),
    ],
)
def test_as_of_a_place_before_a_resync_is_the_state_of_then(
    home: TaskHome, place: int, wanted: object
) -> None:
    assert rows(tailrace.open(home.file).table(ITEM).as_of(place)) == wanted


def test_a_difference_across_a_resync_is_that_of_the_changes(home: TaskHome) -> None:
    home.store((16, "U", item(3, "z")))
    found = tailrace.open(home.file).table(ITEM).diff(12, 16).rows()
    assert sorted((r["id"], r["name"], r["_change_type"]) for r in found) == [
        (1, "b", "update_preimage"), (1, "c", "update_postimage"), (2, "a", "delete"),
        (3, "a", "update_preimage"), (3, "z", "update_postimage"),
    ]  # fmt: skip


def test_a_cut_right_after_a_resync_has_its_last_stored_state(home: TaskHome) -> None:
    """No change has followed the new baseline yet."""
    assert rows(tailrace.open(home.file).cut(tables=[ITEM])[ITEM]) == [(1, "c"), (3, "a")]


def test_a_row_of_before_a_range_is_taken_from_before_a_resync(home: TaskHome) -> None:
    (pair,) = tailrace.open(home.file).table(ITEM).pairs(11, 11).rows()
    assert (pair["before"]["name"], pair["changed"]) == ("a", ["name"])


def test_a_place_before_every_baseline_is_refused(home: TaskHome) -> None:
    with pytest.raises(PositionError, match=r"9 is before the baseline of shop.item \(change number 10"):
        tailrace.open(home.file).table(ITEM).as_of(9)


def test_versions_of_another_table_in_the_same_folder_are_not_taken(home: TaskHome) -> None:
    """The target was removed with its versions, and begins again with the new baseline."""
    shutil.rmtree(home.task.target_path(ITEM))
    home.write([item(9)], 3)
    home.baseline([item(1, "c"), item(3)], after=14, number=3)
    with pytest.raises(PositionError, match=r"11 is before the baseline of shop\.item"):
        tailrace.open(home.file).table(ITEM).as_of(11)
    assert lake.version(home.task.target_path(ITEM)) == 2
