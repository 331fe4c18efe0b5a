"""What a snapshot changes in a history, found by Spark: rows that are new or differ, keys that are gone."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa

from ..engine.history import END_AT
from ..engine.kept_history import SYSTEM_TO
from ..model.quoting import quoted
from .history_table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ..engine.kept_history import HistoryRules

VERSION, GONE = "__snapshot", "__gone"
"""The snapshot's version (bigint or timestamp), and whether its row is there no longer (boolean)."""
_PLACE = "__place"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def version_column(version: int | dt.datetime) -> Column:
    """A snapshot's version as a column: a whole number, or a time."""
    from pyspark.sql import functions as F

    if isinstance(version, dt.datetime):
        return F.timestamp_micros(F.lit(counted(version)))
    return F.lit(version).cast("bigint")


def counted(version: int | dt.datetime) -> int:
    """A version as a whole number: a time's are microseconds since 1970; without a zone it is UTC.

    >>> counted(dt.datetime(1970, 1, 1, 0, 0, 1)), counted(7)
    (1000000, 7)
    """
    if not isinstance(version, dt.datetime):
        return version
    at = version if version.tzinfo else version.replace(tzinfo=dt.timezone.utc)
    return (at - _EPOCH) // dt.timedelta(microseconds=1)


def version_of(count: int, sequence: pa.DataType) -> int | dt.datetime:
    """The version that was counted, as a history has it.

    >>> version_of(1000000, pa.timestamp("us", "UTC")), version_of(7, pa.int64())
    (datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc), 7)
    """
    return _EPOCH + dt.timedelta(microseconds=count) if pa.types.is_timestamp(sequence) else count


def changed(history: HistoryTable, rows: DataFrame, version: int | dt.datetime) -> DataFrame:
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
    at = version_column(version)
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
