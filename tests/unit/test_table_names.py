"""Names of tables that vendors know by an id: later calls have those of earlier ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.apply.vendor.applied_files import AppliedFiles
from tailrace.apply.vendor.sequence_stats import FileChanges, SequenceStats
from tailrace.apply.vendor.table_names import TableNames, refuse_unnamed
from tailrace.errors import ApplyError

pytestmark = pytest.mark.unit


def test_names_are_kept_by_task(tmp_path: Path) -> None:
    TableNames(str(tmp_path), "apply").record({"SHOP.ITEM": "31", "SHOP.LINE": "32"})
    TableNames(str(tmp_path), "other").record({"X": "31"})
    assert TableNames(str(tmp_path), "apply").by_id({}) == {"31": "SHOP.ITEM", "32": "SHOP.LINE"}


def test_what_is_given_comes_first_and_is_known_from_then_on(tmp_path: Path) -> None:
    TableNames(str(tmp_path), "apply").record({"SHOP.ITEM": "31", "SHOP.LINE": "32"})
    names = TableNames(str(tmp_path), "apply")
    assert names.by_id({"33": "SHOP.ITEM", "32": "SHOP.POS"}) == {"33": "SHOP.ITEM", "32": "SHOP.POS"}
    names.record({"SHOP.ITEM": "33", "SHOP.POS": "32"})
    assert TableNames(str(tmp_path), "apply").by_id({}) == {"33": "SHOP.ITEM", "32": "SHOP.POS"}


def test_tables_without_a_name_are_unknown_when_others_were_applied(tmp_path: Path) -> None:
    unnamed, stats = {"31": "its rows have no name"}, SequenceStats(True, True, {"1.csv": FileChanges(1, 9)})
    applied = AppliedFiles(str(tmp_path), "apply")
    assert applied.unknown(unnamed) == {}
    applied.record({"SHOP.ITEM": stats}, {"SHOP.ITEM": ""}, {"SHOP.ITEM": -1})
    assert AppliedFiles(str(tmp_path), "apply").unknown(unnamed) == unnamed
    applied.record({"31": stats}, {"31": ""}, {"31": -1})
    assert AppliedFiles(str(tmp_path), "apply").unknown(unnamed) == {}


def test_they_are_refused(tmp_path: Path) -> None:
    refuse_unnamed({}, "ids", "part")
    with pytest.raises(
        ApplyError, match=r"31: its rows have no name(.|\n)*where: part(.|\n)*--option 'ids=31=TABLE'"
    ):
        refuse_unnamed({"31": "its rows have no name"}, "ids", "part")


def test_an_id_that_goes_back_to_a_table_is_of_that_table(tmp_path: Path) -> None:
    for table in ("A", "B", "A"):
        TableNames(str(tmp_path), "apply").record({table: "31"})
    assert TableNames(str(tmp_path), "apply").by_id({}) == {"31": "A"}
