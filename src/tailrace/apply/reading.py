"""Reads the changes of a batch from their change table into a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..lake import delta as lake
from ..lake.opened import open_table
from ..model.change import PREFIX, ChangeTable
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS
from ..store.kept import files_between
from ..store.tables import kept_as
from ..targets.change_batch import ChangeBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEQ, POSITION = PREFIX + "change_seq", PREFIX + "stream_position"


@dataclass(frozen=True)
class ApplyPaths:
    """The paths of the Delta tables that an applier reads and writes.

    Attributes:
        relations, stored, applied, baselines: control tables.
        changes: returns the path of a table's change table.
    """

    relations: str
    stored: str
    applied: str
    baselines: str
    changes: Callable[[str], str]


def read_changes(spark: SparkSession, batch: ChangeBatch) -> ChangeTable | None:
    """Returns the changes of a batch, read from the Parquet files of the change table; None if it has none.

    The JVM needs no Delta snapshot for this.

    Raises:
        PositionError: some of its changes may have been removed.
    """
    from pyspark.sql.types import StructType

    path, numbers, relation = batch.changes, batch.range, batch.relation
    table = open_table(path)
    files = files_between(path, table, SEQ, numbers.lower, numbers.end)
    if not files:
        return None
    schema = StructType.fromJson(json.loads(lake.schema_json(lake.arrow_schema(table))))
    df = spark.read.schema(schema).parquet(*files)
    # A column whose type changed later is stored under another name, at the same ordinal.
    for c in relation.columns:
        stored = kept_as(df.columns, c.name, numbers.end)
        if stored != c.name:
            df = df.withColumnsRenamed({c.name: f"{c.name}__after_{numbers.end}", stored: c.name})
    return ChangeTable(restrict(df, batch), relation.key, [c.name for c in relation.columns])


def restrict(df: DataFrame, batch: ChangeBatch) -> DataFrame:
    """Returns the rows of a batch: those with change numbers in its range, from its position on."""
    from pyspark.sql import functions as F

    number = F.substring(SEQ, TIME_DIGITS + 1, NUMBER_DIGITS).cast("bigint")
    rows = df.where((number > batch.range.lower) & (number <= batch.range.end))
    return rows.where(F.col(POSITION) >= batch.position) if batch.position else rows
