"""Questions to other vendors' change tables, read by Spark; masks as names in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace.errors import ConfigError
from tailrace.formats import convert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_answers_are_those_of_the_converted_table(spark: SparkSession, tmp_path: Path) -> None:
    tables = str(EXAMPLES / "qlik" / "tables")
    qlik = tailrace.read(tables, format="qlik", session=spark)
    assert (qlik.name, qlik.key) == ("shop.item", ("id",))
    tailrace.convert(tables, str(tmp_path / "out"), from_="qlik", to="tailrace", files="delta", session=spark)
    ours = tailrace.read(str(tmp_path / "out" / "shop.item__ct"), key=["id"])
    middle = ours.changes().rows()[2]["header__change_seq"]
    for start, end, questions in (
        (None, None, ("net", "pairs", "history", "rebuild", "transactions")),
        (middle, None, ("net",)), (None, middle, ("pairs",)),
    ):  # fmt: skip
        for ask in questions:
            here, there = (getattr(t, ask)(start, end).table() for t in (qlik, ours))
            assert here.num_rows and here.sort_by(here.column_names[0]) == there.sort_by(
                here.column_names[0]
            ), ask
    number = int(middle[16:])
    assert [r["header__change_seq"] for r in qlik.changes(number, number).rows()] == [middle]
    with pytest.raises(ConfigError, match="no change table nope"):
        tailrace.read(tables, format="qlik", name="nope", session=spark)
    with pytest.raises(ConfigError, match="no column nope"):
        tailrace.read(tables, format="qlik", key=["nope"], session=spark)


@pytest.mark.slow
@pytest.mark.parametrize(("vendor", "key"), [("openedge", []), ("sqdr", []), ("soliddb", ["ID"])], ids=str)
def test_every_vendors_tables_answer(spark: SparkSession, vendor: str, key: list[str]) -> None:
    tables = str(EXAMPLES / vendor / "tables")
    (name, *_) = sorted(convert.read(spark, convert.side(vendor, tables, {})).changes)
    found = tailrace.read(tables, format=vendor, name=name, key=key, session=spark)
    assert found.key
    assert found.changes().table().num_rows
    assert found.net().table().num_rows


@pytest.mark.parametrize(("column", "reason"), [("name", "why"), ("why", "_why")])
def test_bad_rows_are_aside(spark: SparkSession, tmp_path: Path, column: str, reason: str) -> None:
    (tmp_path / "in").mkdir()
    one, two = ("1".zfill(35), "2".zfill(35))
    rows = f"{one},I,1,a\n{two},X,2,b\n,I,3,c\n"
    (tmp_path / "in" / "s.t__ct.csv").write_text(
        f"header__change_seq,header__change_oper,id,{column}\n{rows}"
    )
    table = tailrace.read(str(tmp_path / "in"), format="qlik", key=["id"], session=spark)
    some = table.net(columns=["id"]).rejects
    assert sorted(some.columns[-1].to_pylist()) == ["no change_seq", "unknown operation X"]
    found = table.net()
    assert [(r["id"], r[column]) for r in found.rows()] == [("1", "a")]
    assert sorted(zip(found.rejects[column].to_pylist(), found.rejects[reason].to_pylist(), strict=True)) == [
        ("b", "unknown operation X"),
        ("c", "no change_seq"),
    ]


@pytest.mark.slow
def test_a_range_that_ends_before_it_starts_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    first, last = "2026112210000000" + "1".zfill(19), "2026112210000500" + "2".zfill(19)
    (tmp_path / "s.t__ct.csv").write_text(
        f"header__change_seq,header__change_oper,id\n{first},I,1\n{last},I,2\n"
    )
    found = tailrace.read(str(tmp_path), format="qlik", key=["id"], session=spark)
    for start, end in ((last, first), (2, "2026-11-22T10:00:00Z"), ("2026-11-22T10:00:05Z", 1)):
        with pytest.raises(ConfigError, match="pass the older position first"):
            found.net(start, end)
    assert found.net(3, "2026-11-22T10:00:05Z").rows() == []
    assert [r["id"] for r in found.net(2, "2026-11-22T10:00:05Z").rows()] == ["2"]


def test_masks_are_names_in_spark(spark: SparkSession) -> None:
    df = spark.sql("SELECT X'0A' AS header__change_mask, 1 AS a, 2 AS b, 3 AS c")
    found = df.select(tailrace.columns_changed(df).alias("changed")).collect()
    assert found[0]["changed"] == ["a", "c"]
    assert df.withColumn("changed", tailrace.columns_changed(df)).count() == 1


@pytest.mark.slow
def test_a_kept_history_takes_numbers_that_begin_anew_and_rows_that_come_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = [f"2026112210000000{number:019d},I,{number}" for number in (7, 500)]
    later = [f"2026112211000000{1:019d},I,1", f"2026112210000000{8:019d},I,8"]
    (tmp_path / "in").mkdir()
    for more, ids in (([], ["500", "7"]), (later[:1], ["1", "500", "7"]), (later, ["1", "500", "7", "8"])):
        rows = "\n".join(["header__change_seq,header__change_oper,id", *told, *more])
        (tmp_path / "in" / "s.t__ct.csv").write_text(rows + "\n")
        table = tailrace.read(str(tmp_path / "in"), format="qlik", key=["id"], session=spark)
        kept = table.keep_history(str(tmp_path / "kept"))
        assert sorted(r["id"] for r in kept.current().rows()) == ids
