"""A policy dump as rows for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...wire.cd_dump import TablePolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def shown(spark: SparkSession, policies: Sequence[TablePolicy]) -> DataFrame:
    """A dump with one row per policy: table, policy, state, instance, level, change_table, fields (text: `Id
    1, Name`, the identifying ones with their place)."""
    rows = [
        (
            f"{p.owner}.{p.table}", p.name, p.state, p.instance, p.level, p.change_table,
            ", ".join(f"{f.name} {f.identifying}" if f.identifying else f.name for f in p.fields),
        )
        for p in policies
    ]  # fmt: skip
    kinds = (
        "table string, policy string, state int, instance int, level int, change_table string, fields string"
    )
    return spark.createDataFrame(rows, kinds)
