"""Differences between a snapshot and a history, found by Spark: new or changed rows, and removed keys."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa

from ...engine.history import END_AT
from ...engine.history_updates import SYSTEM_TO
from ...model.quoting import quoted
from .table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ...engine.history_updates import HistoryRules

VERSION, GONE = "__snapshot", "__gone"
"""Columns: the snapshot's version (bigint or timestamp), and whether its row was removed (boolean)."""
_PLACE = "__place"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def version_column(version: int | dt.datetime) -> Column:
    """Returns a snapshot's version as a column: a whole number, or a time."""
    from pyspark.sql import functions as F

    if isinstance(version, dt.datetime):
        return F.timestamp_micros(F.lit(version_number(version)))
    return F.lit(version).cast("bigint")


def version_number(version: int | dt.datetime) -> int:
    """Returns a version as a whole number: microseconds since 1970 for a time, which is UTC without a zone.

    >>> version_number(dt.datetime(1970, 1, 1, 0, 0, 1)), version_number(7)
    (1000000, 7)
    """
    if not isinstance(version, dt.datetime):
        return version
    at = version if version.tzinfo else version.replace(tzinfo=dt.timezone.utc)
    return (at - _EPOCH) // dt.timedelta(microseconds=1)


def version_of(count: int, sequence: pa.DataType) -> int | dt.datetime:
    """Returns the version for such a number, in the type of the history's sequence.

    >>> version_of(1000000, pa.timestamp("us", "UTC")), version_of(7, pa.int64())
    (datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc), 7)
    """
    return _EPOCH + dt.timedelta(microseconds=count) if pa.types.is_timestamp(sequence) else count


def changed_rows(history: HistoryTable, rows: DataFrame, version: int | dt.datetime) -> DataFrame:
    """Returns the rows that differ between a snapshot and the history's current rows.

    These are the snapshot's new or changed rows, and rows of the history that the snapshot does not have. The
    columns are the history's data columns, `VERSION` and `GONE`. Of several rows with one key, one counts.
    """
    from pyspark.sql import functions as F

    rules = history.rules
    names = [F.col(quoted(n)) for n in rules.columns]
    versions = rows.sparkSession.read.format("delta").load(history.path).where(F.col(END_AT).isNull())
    if rules.bitemporal:
        versions = versions.where(F.col(SYSTEM_TO).isNull())
    now, before = _one_per_key(rows.select(*names), rules), versions.select(*names)
    gone = before.join(now.select(*[F.col(quoted(k)) for k in rules.key]), list(rules.key), "left_anti")
    at = version_column(version)
    new, old = (
        part.withColumns({VERSION: at, GONE: F.lit(flag)})
        for part, flag in ((now.subtract(before), False), (gone.select(*names), True))
    )
    return new.unionByName(old)


def _one_per_key(rows: DataFrame, rules: HistoryRules) -> DataFrame:
    """Returns one row per key, that with the greatest values: the same one as long as the rows are the same.

    Rows with NULL in the key are kept, so that the history rejects them.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [F.col(quoted(n)) for n in rules.key]
    rest = [F.col(quoted(n)).desc() for n in rules.columns if n not in rules.key]
    place = F.row_number().over(Window.partitionBy(*key).orderBy(*(rest or key)))
    keyless = F.greatest(F.lit(False), *[k.isNull() for k in key])
    return rows.withColumn(_PLACE, place).where((F.col(_PLACE) == 1) | keyless).drop(_PLACE)
