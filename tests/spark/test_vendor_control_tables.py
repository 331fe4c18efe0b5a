"""Tables next to changes (control tables): carried where they have a place, named where they have none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace import formats
from tailrace.errors import FormatError
from tailrace.formats import convert, file_writer
from tailrace.formats.qlik import control
from tailrace.formats.sqdr import control as sqdr_control
from tailrace.testing.changes import Image, change_table
from tailrace.testing.formats import full

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
STATUS = "server_name string, task_name string, pending_changes string, mood string"


@pytest.fixture
def replicated(spark: SparkSession, tmp_path: Path) -> convert.Side:
    """A Qlik change table, a control table with a bad row in it and a column of nobody's."""
    form = formats.get("qlik")
    tables = form.write({"shop.item": change_table(spark, [Image(1, "I", full(1))])}, form.options())
    rows = [("s", "t", "5", "good"), ("s", "u", "many", "good")]
    tables["dbo.attrep_status"] = spark.createDataFrame(rows, STATUS)
    file_writer.save(tables, str(tmp_path / "qlik"), "json")
    return convert.side("qlik", str(tmp_path / "qlik"), {"key": "id"})


@pytest.mark.slow
def test_control_tables_go_to_tailrace_and_back(
    spark: SparkSession, tmp_path: Path, replicated: convert.Side
) -> None:
    there = convert.side("tailrace", str(tmp_path / "tailrace"), {})
    report = convert.convert(spark, replicated, there)
    assert {n: (t.rows, t.bad, t.lost) for n, t in report.tables.items()} == {
        "shop.item": (1, 0, {}), "dbo.attrep_status": (1, 1, {}),
    }  # fmt: skip
    rejected = [(r["table"], r["reason"]) for r in spark.read.parquet(str(report.rejects)).collect()]
    assert rejected == [("dbo.attrep_status", "pending_changes is not valid as bigint")]
    back = convert.side("qlik", str(tmp_path / "again"), {}, "csv")
    report = convert.convert(spark, there, back, strict=True)
    assert report.written == {"shop.item__ct": 1, "dbo.attrep_status": 1}
    kept = convert.load(spark, back)["dbo.attrep_status"]
    (row,) = control.conformed("attrep_status", kept).collect()
    assert (row["task_name"], row["pending_changes"], row["mood"]) == ("t", 5, "good")


@pytest.mark.slow
def test_what_has_no_place_is_named_as_lost(
    spark: SparkSession, tmp_path: Path, replicated: convert.Side
) -> None:
    with pytest.raises(FormatError, match=r"soliddb cannot hold the table dbo\.attrep_status"):
        convert.convert(spark, replicated, convert.side("soliddb", str(tmp_path / "no"), {}), strict=True)
    assert not (tmp_path / "no").exists()
    report = convert.convert(spark, replicated, convert.side("soliddb", str(tmp_path / "solid"), {}))
    assert report.tables["dbo.attrep_status"].lost == {"table": 2}


def test_which_format_has_a_place(spark: SparkSession) -> None:
    group = spark.createDataFrame([("g", "shop")], "id string, name string")
    made = sqdr_control.control_table("groups", group)
    assert made is not None
    assert made.columns[:3] == ["id", "name", "since"]
    assert sqdr_control.control_table("item", group.withColumnRenamed("name", "v")) is None
    assert control.control_table("item", group) is None
