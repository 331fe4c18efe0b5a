"""Loads rows into Iceberg targets, and reads their rows in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ...execution import over_rows
from ...lake.failpoints import reach
from ...lake.iceberg.files import IcebergFiles
from ...lake.iceberg.tables import IcebergTable, IcebergTables
from ...lake.table import LakeTable
from ...model.change import Relation
from ...model.types import schema_of, spark_type
from ..lake.load import PartTask, write_parts
from ..lake.multi_source import exchange_partition
from ..multi_source import refuse_columns
from ..parts import Parts
from .layout import Replacement, create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(
    tables: IcebergTables, name: str, app: str, relation: Relation, rows: DataFrame | Parts, after: int
) -> int:
    """Replaces all rows of a table, in one commit with its progress, and returns the version."""
    work = Replacement.of(tables, name, relation)
    files, _ = write_parts(rows, PartTask(work.files, schema_of(relation.columns)))
    reach("delta.load")
    return work.commit(tables, files, {app: max(after, 0)})


def load_partition(
    tables: IcebergTables,
    name: str,
    app: str,
    relation: Relation,
    rows: DataFrame | Parts,
    after: int,
    partition: Mapping[str, str],
    rule_columns: Mapping[str, str],
) -> int:
    """Replaces the rows of one source in a shared target, and returns the version; arguments and errors as in
    the same function for Delta."""
    create(tables, name, relation)
    want = {c.name: c.type for c in relation.columns}

    def checked_schema(now: LakeTable) -> pa.Schema:
        have = {f.name: spark_type(f.type) for f in now.schema}
        refuse_columns(relation.table, name, have, want, rule_columns)
        return now.schema

    now = tables.open(name)
    checked_schema(now)
    files, _ = write_parts(rows, PartTask(now.files, schema_of(relation.columns)))
    return exchange_partition(tables, name, app, files, after, partition, checked_schema)


@dataclass(frozen=True)
class _ReadFiles:
    """Reads the files whose names are in the rows."""

    files: IcebergFiles
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column(0).to_pylist():
                with self.files.open(name) as file:
                    yield from self.files.batches(file, self.schema)


def rows_of(spark: SparkSession, table: IcebergTable) -> DataFrame:
    """Returns the rows of a version in Spark, which needs no Iceberg runtime."""
    import json

    from pyspark.sql.types import StructType

    from ...lake.delta import schema_json

    schema = pa.schema([f.with_nullable(True) for f in table.schema])
    shape = StructType.fromJson(json.loads(schema_json(schema)))
    names = [(name,) for name in table.entries]
    if not names:
        return spark.createDataFrame([], shape)
    files = spark.createDataFrame(names, "name string").repartition(len(names))
    return over_rows(files, _ReadFiles(table.files, schema), shape)
