"""What a snapshot changes in a history, found by Spark: rows that are new or differ, keys that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.history import END_AT
from ..engine.kept_history import SYSTEM_TO
from .history_table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSION, GONE = "__snapshot", "__gone"
"""The snapshot's version (bigint), and whether its row is there no longer (boolean)."""


def changed(history: HistoryTable, rows: DataFrame, version: int) -> DataFrame:
    """The rows of a snapshot, whole, that a history does not have in force, and those that it has and the
    snapshot has not: the history's data columns, `VERSION`, `GONE`."""
    from pyspark.sql import functions as F

    rules = history.rules
    names = [F.col(f"`{n}`") for n in rules.columns]
    versions = rows.sparkSession.read.format("delta").load(history.path).where(F.col(END_AT).isNull())
    if rules.bitemporal:
        versions = versions.where(F.col(SYSTEM_TO).isNull())
    now, before = rows.select(*names), versions.select(*names)
    gone = before.join(now.select(*[F.col(f"`{k}`") for k in rules.key]), list(rules.key), "left_anti")
    at = F.lit(version).cast("bigint")
    new, old = (
        part.withColumns({VERSION: at, GONE: F.lit(flag)})
        for part, flag in ((now.subtract(before), False), (gone.select(*names), True))
    )
    return new.unionByName(old)
