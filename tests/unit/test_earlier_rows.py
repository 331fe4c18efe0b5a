"""Before images that the source did not send: the row is in the baseline, or in earlier images."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.library.task_table import TaskTable
from tailrace.model import mask
from tailrace.model.types import header_schema

from .once import once
from .task_home import ITEM, TaskHome, item

pytestmark = pytest.mark.unit
START = len(header_schema())
SENT = mask.encode([START + 1, START + 2])
"""The change mask of an update without a before image: all that was sent, but for the key."""
KEY_ONLY = {"header__column_mask": mask.encode([START]), "header__change_mask": mask.encode([START])}


def updated(*row: Any) -> dict[str, Any]:
    return item(*row) | {"header__change_mask": SENT}


@once
def default_identity(folder: Path) -> TaskHome:
    """A baseline, and changes as PostgreSQL sends them under the default replica identity."""
    home = TaskHome(folder)
    home.baseline([item(1), item(2), item(3)], after=10)
    home.store((11, "U", updated(1, "b")), (12, "U", updated(1, "c")), (13, "D", {"id": 2} | KEY_ONLY))
    return home


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return default_identity(tmp_path)


def table(home: TaskHome) -> TaskTable:
    return tailrace.open(home.file).table(ITEM)


def shown(found: tailrace.Result, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[n] for n in names) for row in found.rows()]


def test_net_shows_the_row_of_the_baseline_before_an_update(home: TaskHome) -> None:
    assert shown(table(home).net(), "id", "name", "price", "_change_type", "_absent") == [
        (1, "a", Decimal("1.00"), "update_preimage", None),
        (1, "c", Decimal("1.00"), "update_postimage", None),
        (2, "a", Decimal("1.00"), "delete", None),
    ]


def test_net_of_a_later_range_shows_the_last_image_before_it(home: TaskHome) -> None:
    assert shown(table(home).net(12), "name", "_change_type", "_absent")[0] == ("b", "update_preimage", None)


def test_history_begins_with_the_row_of_the_baseline(home: TaskHome) -> None:
    assert shown(table(home).history(), "id", "name", "valid_from", "_absent")[0] == (1, "a", None, None)


def test_pairs_show_whole_rows_and_the_columns_that_differ(home: TaskHome) -> None:
    assert shown(table(home).pairs(), "before", "after", "changed", "_absent") == [
        (item(1), item(1, "b"), ["name"], None),
        (item(1, "b"), item(1, "c"), ["name"], None),
        (item(2), None, None, None),
    ]


def test_chain_and_rebuild_show_whole_rows(home: TaskHome) -> None:
    assert shown(table(home).chain({"id": 2}), "before", "_absent") == [(item(2), None)]
    deleted = table(home).rebuild().rows()[-1]
    assert (deleted["name"], deleted["header__column_mask"]) == ("a", None)


def test_a_change_of_the_key_shows_the_row_under_its_old_key(home: TaskHome) -> None:
    home.store((14, "B", {"id": 3} | KEY_ONLY), (14, "U", item(7, "a") | {"header__change_mask": SENT}))
    assert shown(table(home).pairs(14), "before", "after", "changed") == [(item(3), item(7), ["id"])]
    assert shown(table(home).net(14), "id", "name", "_change_type") == [
        (3, "a", "delete"),
        (7, "a", "insert"),
    ]


def test_a_truncate_stays_one_row(home: TaskHome) -> None:
    home.store((14, "U", updated(1, "d")), (15, "T", {}))
    found = table(home).net(14)
    assert shown(found, "id", "_change_type") == [(None, "truncate")]


def test_without_versions_of_the_target_earlier_images_tell(home: TaskHome, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    home = TaskHome(tmp_path / "other", "target: 'postgresql://me@db/other'")
    home.store(
        (11, "U", updated(1, "b")), (12, "I", item(4)), (13, "U", updated(1, "c")), (14, "U", updated(4, "x"))
    )
    assert shown(table(home).pairs(13), "before", "changed", "_absent") == [
        (item(1, "b"), ["name"], None),
        (item(4), ["name"], None),
    ]


def test_what_nothing_tells_is_named_as_unknown_and_not_as_changed(tmp_path: Path) -> None:
    home = TaskHome(tmp_path, "target: 'postgresql://me@db/other'")
    home.store((11, "U", updated(1, "b")))
    (row,) = table(home).pairs().rows()
    assert (row["changed"], row["_absent"]) == ([], ["before.name", "before.price"])
    assert shown(table(home).net(), "name", "_absent")[0] == (None, ["name", "price"])


def test_a_row_that_the_target_has_lost_is_unknown(home: TaskHome) -> None:
    home.applied([item(1, "c")], 13)
    home.store((14, "U", updated(3, "z")))
    assert shown(table(home).pairs(14), "_absent") == [(["before.name", "before.price"],)]


def test_a_mask_that_a_source_computed_still_names_what_it_changed(tmp_path: Path) -> None:
    home = TaskHome(tmp_path, "target: 'postgresql://me@db/other'")
    home.store((11, "U", item(1, "b") | {"header__change_mask": mask.encode([START + 1])}))
    assert shown(table(home).pairs(), "changed") == [(["name"],)]
