"""Reads tables made of files in Spark, which needs no support for their format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..execution import over_rows
from ..lake.data_files import DataFiles
from ..lake.delta import schema_json
from ..lake.table import LakeTable
from .delta.spark_io import rows_of
from .delta.tables import DeltaLakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class _ReadFiles:
    """Reads the files whose names are in the rows."""

    files: DataFiles
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column(0).to_pylist():
                with self.files.open(name) as file:
                    yield from self.files.batches(file, self.schema)


def spark_rows(spark: SparkSession, table: LakeTable) -> DataFrame:
    """Returns the rows of a version of a table. Spark reads Delta tables, tasks read the files of others."""
    from pyspark.sql.types import StructType

    if isinstance(table, DeltaLakeTable):
        return rows_of(spark, table.name, table.delta)
    schema = pa.schema([f.with_nullable(True) for f in table.schema])
    shape = StructType.fromJson(json.loads(schema_json(schema)))
    names = [(file["path"],) for file in table.data_files()]
    if not names:
        return spark.createDataFrame([], shape)
    files = spark.createDataFrame(names, "name string").repartition(len(names))
    return over_rows(files, _ReadFiles(table.files, schema), shape)
