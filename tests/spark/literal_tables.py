"""Tables of literal rows that need no Spark task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tailrace.formats.shape import few_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table(spark: SparkSession, rows: Iterable[tuple[Any, ...]], columns: str) -> DataFrame:
    """A table of these rows; `columns` as in SQL: `id int, name string`."""
    from pyspark.sql.types import StructType

    kinds = {one.name: one.dataType.simpleString() for one in StructType.fromDDL(columns)}
    return few_rows(spark, kinds, [dict(zip(kinds, row, strict=True)) for row in rows])
