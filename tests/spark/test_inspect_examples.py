"""`tailrace inspect` on each vendor's example: the whole folder, and tables that say little alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.cli.screen_formats import show_found
from tailrace.formats import inspect as looking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples"


def look(spark: SparkSession, *path: str) -> looking.Found:
    found = looking.inspect(spark, str(EXAMPLES.joinpath(*path)), rows=1)
    show_found(found)
    return found


@pytest.mark.slow
def test_openedge_tables_alone(spark: SparkSession, tmp_path: Path) -> None:
    images = look(spark, "openedge", "tables", "PUB.CDC_Item.csv")
    assert [t.name for t in images.tables] == ["PUB.Item"]
    assert images.notes[0] == "read with orphans=keep, because of: change tables without _Cdc-Change-Tracking"
    policies = look(spark, "openedge", "tables", "PUB._Cdc-Table-Policy.csv")
    assert (policies.format, policies.tables) == ("openedge", [])
    (first,) = policies.control_tables["PUB._Cdc-Table-Policy"]
    assert (first["_Policy-Name"], first["_Level"]) == ("item_values", "2")


def test_a_qlik_full_load_alone(spark: SparkSession) -> None:
    found = look(spark, "qlik", "tables", "shop.item")
    assert (found.format, [t.operations for t in found.tables]) == ("qlik", [{"I": 2}])


@pytest.mark.slow
def test_openedge_and_another_vendor_in_one_folder(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for vendor in ("openedge", "qlik"):
        shutil.copytree(EXAMPLES / vendor / "tables", tmp_path, dirs_exist_ok=True)
    found = look(spark, str(tmp_path))
    assert (found.format, found.sure) == ("openedge", 1.0)
    assert [(t.name, t.operations) for t in found.tables] == [
        ("PUB.Item", {"I": 3, "B": 2, "U": 3, "D": 1}), ("PUB.Till", {"U": 1}),
    ]  # fmt: skip
    assert any("rows change nothing: operation " in note for note in found.notes)
    assert (found.vendors["PUB.CDC_Item"], found.vendors["shop.item__ct"]) == ("openedge", "qlik")
    assert any(note.startswith("shop.item__ct is not read: ") for note in found.notes)
    told = capsys.readouterr().out
    assert "PUB.Item  key: Id" in told
    assert "shop.item (qlik): id, name, price" in told


def preview(spark: SparkSession, *path: str, first: int = looking.PREVIEW) -> looking.Found:
    return looking.inspect(spark, str(EXAMPLES.joinpath(*path)), rows=20, first=first)


KEYS = {
    "openedge": {"PUB.Item": ["Id"], "PUB.Till": []},
    "qlik": {"shop.item": ["id"]},
    "soliddb": {"SHOP.ITEM": []},
    "sqdr": {"SHOP.ITEM": ["ID"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("vendor", list(KEYS))
def test_a_preview_of_all_rows_shows_what_a_check_shows(spark: SparkSession, vendor: str) -> None:
    whole = looking.inspect(spark, str(EXAMPLES / vendor / "tables"), rows=20)
    show_found(whole)
    keys = {t.name: t.key for t in whole.tables}
    assert (whole.format, {name: keys.get(name) for name in KEYS[vendor]}) == (vendor, KEYS[vendor])
    if vendor == "soliddb":
        assert "SYS_LOG" in whole.vendor_tables
    if vendor == "qlik":
        assert whole.tables[0].odd == {}
        assert whole.tables[0].headers["native_oper"] < sum(whole.tables[0].operations.values())
    found = preview(spark, vendor, "tables")
    assert [t.odd for t in found.tables] == [{}] * len(whole.tables)  # it does not check rows
    assert [(t.name, t.key, t.columns, t.operations) for t in found.tables] == [
        (t.name, t.key, t.columns, t.operations) for t in whole.tables
    ]


@pytest.mark.slow
def test_a_preview_of_few_rows_says_how_many_it_read(spark: SparkSession) -> None:
    found = preview(spark, "openedge", "tables", first=1)
    assert {t.name for t in found.tables} == {"PUB.Item", "PUB.Till"}
    assert sum(sum(t.operations.values()) for t in found.tables) <= 2
    assert found.tables[0].key == ["Id"]
    said = "at most 1 rows of each table were read; --check reads all of them and reports bad ones"
    assert said in found.notes
