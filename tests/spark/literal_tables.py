"""Tables of a few rows, in and out, for which Spark starts no task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from tailrace.formats.shape import arrow_rows, few_rows
from tailrace.lake import delta as lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table(spark: SparkSession, rows: Iterable[tuple[Any, ...]], columns: str) -> DataFrame:
    """A table of these rows; `columns` as in SQL: `id int, name string`."""
    from pyspark.sql.types import StructType

    kinds = {one.name: one.dataType.simpleString() for one in StructType.fromDDL(columns)}
    return few_rows(spark, kinds, [dict(zip(kinds, row, strict=True)) for row in rows])


def rows_at(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a small Delta table, read by this process: Spark's first look at one takes it a second. One with
    deletion vectors is read by Spark."""
    if "deletionVectors" in (DeltaTable(path).protocol().reader_features or []):
        return spark.read.format("delta").load(path)
    return arrow_rows(spark, lake.read(path))
