"""A policy dump as rows for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...wire.cd_dump import TablePolicy
from ..shape import few_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = {
    "table": "string", "policy": "string", "state": "int", "instance": "int", "level": "int",
    "change_table": "string", "fields": "string",
}  # fmt: skip


def shown(spark: SparkSession, policies: Sequence[TablePolicy]) -> DataFrame:
    """A dump with one row per policy: table, policy, state, instance, level, change_table, fields (text: `Id
    1, Name`, the identifying ones with their place)."""
    rows = [
        {
            "table": f"{p.owner}.{p.table}", "policy": p.name, "state": p.state, "instance": p.instance,
            "level": p.level, "change_table": p.change_table,
            "fields": ", ".join(f"{f.name} {f.identifying}" if f.identifying else f.name for f in p.fields),
        }
        for p in policies
    ]  # fmt: skip
    return few_rows(spark, _KINDS, rows)
