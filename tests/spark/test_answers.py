"""Answers to questions as Spark DataFrames."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tailrace
from tailrace.formats.shape import few_rows
from tailrace.model.change import Column
from tailrace.query.result import Result
from tests.unit.task_home import ITEM, TaskHome, at

pytestmark = pytest.mark.spark


def test_an_answer_is_a_dataframe_with_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    home.store(
        (1, "I", {"id": 1, "name": "a", "price": Decimal("0.10")}),
        (2, "U", {"id": 1, "name": None, "price": None}),
    )
    table = tailrace.open(home.file).table(ITEM)
    net = table.net(2).spark(spark)
    assert dict(net.dtypes) | {"price": "decimal(8,2)", "_absent": "array<string>"} == dict(net.dtypes)
    assert [r["_change_type"] for r in net.collect()] == ["update_preimage", "update_postimage"]
    pairs = table.pairs().spark(spark).select("changed", "before.name", "after.id").collect()
    assert [tuple(r) for r in pairs] == [(None, None, 1), (["name", "price"], "a", 1)]
    assert (
        table.history().spark(spark).where("is_current").first()["__START_AT"]
        == table.changes(2).rows()[0]["header__change_seq"]
    )
    assert at(2).isoformat() in {r["_commit_timestamp"].isoformat() for r in table.net(2).rows()}


SKIPPED = dt.datetime(2026, 3, 29, 2, 30, 0, 123456)
"""A time that clocks in Berlin leave out."""


@contextmanager
def settings(spark: SparkSession, **more: str) -> Iterator[None]:
    """The session with other settings of `spark.sql`."""
    given = {f"spark.sql.{n.replace('_', '.')}": v for n, v in more.items()}
    before = {n: spark.conf.get(n) for n in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


@pytest.mark.parametrize(
    ("zone", "kind"),
    [("Europe/Berlin", "TIMESTAMP_LTZ"), ("Europe/Berlin", "TIMESTAMP_NTZ"), ("Asia/Tokyo", "TIMESTAMP_LTZ")],
)
def test_times_without_a_zone_have_none_in_spark_whatever_the_sessions(
    spark: SparkSession, zone: str, kind: str
) -> None:
    here, at = pa.timestamp("us"), pa.timestamp("us", "UTC")
    instant = SKIPPED.replace(tzinfo=dt.timezone.utc)
    struct = pa.struct([("here", here), ("at", at), ("many", pa.list_(here))])
    rows = pa.table(
        {
            "here": pa.array([SKIPPED, None], here),
            "at": pa.array([instant, None], at),
            "many": pa.array([[SKIPPED, None], None], pa.list_(here)),
            "row": pa.array([{"here": SKIPPED, "at": instant, "many": [SKIPPED]}, None], struct),
        }
    )
    with settings(spark, session_timeZone=zone, timestampType=kind):
        found = Result.of(rows).spark(spark)
        assert dict(found.dtypes) == {
            "here": "timestamp_ntz",
            "at": "timestamp",
            "many": "array<timestamp_ntz>",
            "row": "struct<here:timestamp_ntz,at:timestamp,many:array<timestamp_ntz>>",
        }
        text = ["here", "many[0]", "row.here", "row.many[0]"]
        shown = found.selectExpr(*[f"CAST({t} AS string)" for t in text], "unix_micros(at)").first()
        assert shown is not None
        assert tuple(shown) == (*(4 * [str(SKIPPED)]), int(instant.timestamp()) * 1_000_000 + 123456)
        got = found.toArrow()
        assert got["here"].to_pylist() == [SKIPPED, None]
        assert few_rows(spark, {"here": "timestamp_ntz"}, [{"here": SKIPPED}]).toArrow()[
            "here"
        ].to_pylist() == [SKIPPED]


def test_answers_in_a_statement_of_sparks_keep_such_times(spark: SparkSession, tmp_path: Path) -> None:
    columns = [
        Column("id", 1, "integer", "int4", "int", key=True),
        Column("here", 2, "timestamp", "timestamp", "timestamp_ntz"),
    ]
    home = TaskHome(tmp_path, columns=columns)
    home.baseline([], after=0)
    home.store((1, "I", {"id": 1, "here": SKIPPED}))
    said = "SELECT here, CAST(here AS string) AS text, after.here AS after FROM net('shop.item') JOIN pairs('shop.item')"
    try:
        with settings(spark, session_timeZone="Europe/Berlin"):
            assert tailrace.open(home.file).sql(said, spark).rows() == [
                {"here": SKIPPED, "text": str(SKIPPED), "after": SKIPPED}
            ]
    finally:
        spark.sql("DROP SCHEMA IF EXISTS shop CASCADE")
        spark.sql("DROP TABLE IF EXISTS tracking")
