"""A segment of one table's changes, read from its change table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ..lake import delta as lake
from ..model.change import PREFIX, ChangeTable
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS
from ..store.kept import files_between
from ..store.tables import kept_as
from .segment import Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEQ, POSITION = PREFIX + "change_seq", PREFIX + "stream_position"


@dataclass(frozen=True)
class ApplyPaths:
    """Delta table paths an applier reads and writes, and the change table's path per table name."""

    relations: str
    stored: str
    applied: str
    baselines: str
    changes: Callable[[str], str]


def read_changes(spark: SparkSession, path: str, one: Segment) -> ChangeTable | None:
    """A segment of a change table, read from its parquet files (no Delta snapshot on the JVM's side); None
    when no file can hold it.

    Raises:
        PositionError: some of its changes may be gone.
    """
    from pyspark.sql.types import StructType

    table = DeltaTable(path)
    files = files_between(path, table, SEQ, one.after, one.upto)
    if not files:
        return None
    schema = StructType.fromJson(json.loads(lake.schema_json(lake.arrow_schema(table))))
    df = spark.read.schema(schema).parquet(*files)
    # A column that became another type later stands under another name; its place stays, for the masks.
    for c in one.relation.columns:
        kept = kept_as(df.columns, c.name, one.upto)
        if kept != c.name:
            df = df.withColumnsRenamed({c.name: f"{c.name}__after_{one.upto}", kept: c.name})
    return ChangeTable(restrict(df, one), one.relation.key, [c.name for c in one.relation.columns])


def restrict(df: DataFrame, one: Segment) -> DataFrame:
    """The rows of a segment: change numbers in (after, upto], and not yet in the baseline."""
    from pyspark.sql import functions as F

    number = F.substring(SEQ, TIME_DIGITS + 1, NUMBER_DIGITS).cast("bigint")
    kept = df.where((number > one.after) & (number <= one.upto))
    return kept.where(F.col(POSITION) >= one.position) if one.position else kept
