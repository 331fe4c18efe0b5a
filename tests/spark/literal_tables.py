"""Tables of a few rows, in and out, for which Spark starts no task."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from tailrace.formats.shape import arrow_rows, few_rows
from tailrace.lake import delta as lake
from tailrace.lake.opened import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table(spark: SparkSession, rows: Iterable[tuple[Any, ...]], columns: str) -> DataFrame:
    """A table of these rows; `columns` as in SQL: `id int, name string`."""
    from pyspark.sql.types import StructType

    kinds = {one.name: one.dataType.simpleString() for one in StructType.fromDDL(columns)}
    return few_rows(spark, kinds, [dict(zip(kinds, row, strict=True)) for row in rows])


INSERT = re.compile(r"INSERT INTO \{\}(?: \((.*?)\))? VALUES (.*)")
UPDATE = re.compile(r"UPDATE \{\} SET (\w+) = (.*) WHERE (.*)")


def by_another(spark: SparkSession, path: str, statement: str) -> None:
    """Another writer's INSERT or UPDATE of a small Delta table, which is `{}` in it. By this process, but for tables
    with deletion vectors, which delta-rs does not write."""
    delta = open_table(path)
    insert, update = INSERT.fullmatch(statement), UPDATE.fullmatch(statement)
    if "deletionVectors" in (delta.protocol().writer_features or []):
        spark.sql(statement.format(f"delta.`{path}`"))
    elif update:
        delta.update({update[1]: update[2]}, predicate=update[3])
    else:
        assert insert, statement
        kinds = pa.schema(delta.schema().to_arrow())
        names = insert[1].split(", ") if insert[1] else kinds.names
        rows = [dict(zip(names, map(str, row), strict=True)) for row in ast.literal_eval(f"[{insert[2]}]")]
        made = [pa.array([row[kind.name] for row in rows]).cast(kind.type) for kind in kinds]
        write_deltalake(delta, pa.Table.from_arrays(made, schema=kinds), mode="append")


def rows_at(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a small Delta table, read by this process: Spark's first look at one takes it a second. One with
    deletion vectors is read by Spark."""
    if "deletionVectors" in (open_table(path).protocol().reader_features or []):
        return spark.read.format("delta").load(path)
    return arrow_rows(spark, lake.read(path))
