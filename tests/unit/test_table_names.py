"""Names of tables that vendors know by an id: later calls have those of earlier ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.apply.vendor.late_changes import LateChanges, Passed
from tailrace.apply.vendor.table_names import TableNames, refuse_unnamed
from tailrace.errors import ApplyError

pytestmark = pytest.mark.unit


def test_names_are_kept_by_task(tmp_path: Path) -> None:
    TableNames(str(tmp_path), "apply").note({"SHOP.ITEM": "31", "SHOP.LINE": "32"})
    TableNames(str(tmp_path), "other").note({"X": "31"})
    assert TableNames(str(tmp_path), "apply").of({}) == {"31": "SHOP.ITEM", "32": "SHOP.LINE"}


def test_what_is_given_comes_first_and_is_known_from_then_on(tmp_path: Path) -> None:
    TableNames(str(tmp_path), "apply").note({"SHOP.ITEM": "31", "SHOP.LINE": "32"})
    names = TableNames(str(tmp_path), "apply")
    assert names.of({"33": "SHOP.ITEM", "32": "SHOP.POS"}) == {"33": "SHOP.ITEM", "32": "SHOP.POS"}
    names.note({"SHOP.ITEM": "33", "SHOP.POS": "32"})
    assert TableNames(str(tmp_path), "apply").of({}) == {"33": "SHOP.ITEM", "32": "SHOP.POS"}


def test_tables_without_a_name_are_strange_when_others_were_applied(tmp_path: Path) -> None:
    unnamed = {"31": "its rows have no name"}
    passed = LateChanges(str(tmp_path), "apply")
    assert passed.strange(unnamed) == {}
    passed.note({"SHOP.ITEM": Passed(5)}, {})
    assert LateChanges(str(tmp_path), "apply").strange(unnamed) == unnamed
    passed.note({"31": Passed(5)}, {})
    assert LateChanges(str(tmp_path), "apply").strange(unnamed) == {}


def test_they_are_refused(tmp_path: Path) -> None:
    refuse_unnamed({}, "ids", "part")
    with pytest.raises(
        ApplyError, match=r"31: its rows have no name(.|\n)*where: part(.|\n)*--option 'ids=31=TABLE'"
    ):
        refuse_unnamed({"31": "its rows have no name"}, "ids", "part")


def test_an_id_that_goes_back_to_a_table_is_of_that_table(tmp_path: Path) -> None:
    for table in ("A", "B", "A"):
        TableNames(str(tmp_path), "apply").note({table: "31"})
    assert TableNames(str(tmp_path), "apply").of({}) == {"31": "A"}
