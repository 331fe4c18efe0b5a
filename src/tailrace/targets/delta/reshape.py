"""Writes the rows of a Delta table in another layout. Only tables with deletion vectors are read by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ...model.change import Relation
from ..lake.reshape import Reshape, ReshapeTask, reshaped_files
from ..parts import run
from .spark_io import rows_of
from .table_info import has_vectors
from .tables import DeltaLakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parts(
    spark: SparkSession, path: str, table: DeltaTable, before: Relation, after: Relation
) -> list[lake.AddedFile]:
    """Writes all rows of an open table in another layout to parts, which are not committed. `spark` is
    started only for tables with deletion vectors."""
    files = DataFiles(path)
    if not has_vectors(table):
        return reshaped_files(spark, DeltaLakeTable(path, table), files, before, after)
    names = {c.name for c in before.columns}
    old_schema = pa.schema([f.with_nullable(True) for f in lake.arrow_schema(table) if f.name in names])
    task = ReshapeTask(files, files, Reshape(before, after), old_schema)
    found = [row["file"] for row in run(rows_of(spark, path, table), task)]
    return [lake.AddedFile.from_json(one) for one in found if one]
