"""What a snapshot changes in a history, found by Spark: rows that are new or differ, keys that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.history import END_AT
from ..engine.kept_history import SYSTEM_TO
from ..model.quoting import quoted
from .history_table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.kept_history import HistoryRules

VERSION, GONE = "__snapshot", "__gone"
"""The snapshot's version (bigint), and whether its row is there no longer (boolean)."""
_PLACE = "__place"


def changed(history: HistoryTable, rows: DataFrame, version: int) -> DataFrame:
    """The rows of a snapshot, whole, that a history does not have in force, and those that it has and the
    snapshot has not: the history's data columns, `VERSION`, `GONE`. Of several rows of one key one counts."""
    from pyspark.sql import functions as F

    rules = history.rules
    names = [F.col(quoted(n)) for n in rules.columns]
    versions = rows.sparkSession.read.format("delta").load(history.path).where(F.col(END_AT).isNull())
    if rules.bitemporal:
        versions = versions.where(F.col(SYSTEM_TO).isNull())
    now, before = _one_a_key(rows.select(*names), rules), versions.select(*names)
    gone = before.join(now.select(*[F.col(quoted(k)) for k in rules.key]), list(rules.key), "left_anti")
    at = F.lit(version).cast("bigint")
    new, old = (
        part.withColumns({VERSION: at, GONE: F.lit(flag)})
        for part, flag in ((now.subtract(before), False), (gone.select(*names), True))
    )
    return new.unionByName(old)


def _one_a_key(rows: DataFrame, rules: HistoryRules) -> DataFrame:
    """Of each key the row with the greatest values: the same one as long as the rows are the same. Rows with
    NULL in the key stay, for the history to set them aside."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [F.col(quoted(n)) for n in rules.key]
    rest = [F.col(quoted(n)).desc() for n in rules.columns if n not in rules.key]
    place = F.row_number().over(Window.partitionBy(*key).orderBy(*(rest or key)))
    keyless = F.greatest(F.lit(False), *[k.isNull() for k in key])
    return rows.withColumn(_PLACE, place).where((F.col(_PLACE) == 1) | keyless).drop(_PLACE)
