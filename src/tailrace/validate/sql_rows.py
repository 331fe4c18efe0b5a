"""Writes rows that only Spark SQL can compute to files, so that they are compared like others."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from ..execution import Job, described
from ..lake.data_files import DataFiles
from ..model.types import arrow_type
from ..targets.lake.load import PartTask, write_parts
from .file_rows import FileRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_query_rows(
    spark: SparkSession, make: Callable[[SparkSession], DataFrame], scratch: str, job: Job
) -> FileRows:
    """Returns the rows of a DataFrame, written to files by tasks.

    Args:
        spark: the session.
        make: returns the DataFrame.
        scratch: a folder that all tasks can read and write.
        job: the job's description in Spark.
    """
    with described(spark, job):
        df = make(spark)
        schema = pa.schema([pa.field(f.name, arrow_type(f.dataType.simpleString())) for f in df.schema])
        if not schema:
            return FileRows.of([], schema)
        folder = f"{scratch}/{uuid.uuid4().hex}"
        files, written = write_parts(df, PartTask(DataFiles(folder), schema))
    return FileRows.of([f"{folder}/{one.path}" for one in files], schema, written.inserted)
