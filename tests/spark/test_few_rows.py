"""What takes a little job no time that it does not need: rows that are here, no ranges of one task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tailrace.formats.shape import few_rows
from tailrace.formats.sqdr.writer import Ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rows_that_are_here_become_a_table_without_a_task(spark: SparkSession) -> None:
    kinds = {"id": "int", "raw": "binary", "at": "timestamp", "odd `name`": "string"}
    made = few_rows(spark, kinds, [{"id": 1, "raw": bytearray(b"x")}, {"odd `name`": "a"}])
    assert made.dtypes == [("id", "int"), ("raw", "binary"), ("at", "timestamp"), ("odd `name`", "string")]
    assert [tuple(r) for r in made.collect()] == [(1, bytearray(b"x"), None, None), (None, None, None, "a")]
    assert "LocalTableScan" in made._jdf.queryExecution().executedPlan().toString()


def test_of_no_rows_the_types_remain(spark: SparkSession) -> None:
    made = few_rows(spark, {"n": "decimal(10,2)"}, [])
    assert (made.dtypes, made.collect()) == ([("n", "decimal(10,2)")], [])


def test_one_task_needs_no_ranges(spark: SparkSession) -> None:
    """Rows that cannot be computed show that nobody looks at them."""
    wrong = spark.range(3).selectExpr("cast(raise_error('looked at') as bigint) a", "id b")
    lanes = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        ranges = Ranges.of([wrong])
        assert ranges.bounds == ()
        rows = ranges.ordered(spark.range(3, 0, -1), [F.col("id")], "id")
        assert [r.id for r in rows.collect()] == [1, 2, 3]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(lanes))


def test_ranges_of_many_rows_with_few_numbers(spark: SparkSession) -> None:
    """Which rows tell the ranges does not hang on their numbers, of which there may be two."""
    ranges = Ranges.of([spark.range(250_000).selectExpr("1L a", "id % 2 b")])
    assert (ranges.number, set(ranges.bounds) <= {0.0, 1.0}, len(ranges.bounds)) == (1, True, 1)
