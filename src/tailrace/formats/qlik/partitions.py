"""Change Data Partitioning: names of partitions, and which of them are closed (spec/qlik.md §3)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = r"\d{8}T\d{6}_\d{8}T\d{6}"
TABLE = "attrep_cdc_partitions"
_FOLDER = re.compile(rf"(?:[^/=]+=)?({NAME})")
_FORMAT = "yyyyMMdd'T'HHmmss"


def of_folder(folder: str) -> str | None:
    """The partition in a folder's name, plain or in Hive's form.

    >>> of_folder("header__partition_name=20170313T123000_20170313T170000")
    '20170313T123000_20170313T170000'
    >>> of_folder("dbo.item__ct") is None
    True
    """
    found = _FOLDER.fullmatch(folder)
    return found[1] if found else None


def name_of(change_seq: Column, minutes: int) -> Column:
    """The partition of a change: slices of that many minutes of its commit time, counted from 1970 (UTC)."""
    from pyspark.sql import functions as F

    at = F.unix_timestamp(F.try_to_timestamp(F.substring(change_seq, 1, 14), F.lit("yyyyMMddHHmmss")))
    start = F.floor(at / (60 * minutes)) * (60 * minutes)
    ends = [F.date_format(F.timestamp_seconds(s), _FORMAT) for s in (start, start + 60 * minutes)]
    return F.concat_ws("_", *ends)


def times_of(name: Column) -> tuple[Column, Column]:
    """The start and end of a partition, from its name."""
    from pyspark.sql import functions as F

    start, end = F.split_part(name, F.lit("_"), F.lit(1)), F.split_part(name, F.lit("_"), F.lit(2))
    return F.try_to_timestamp(start, F.lit(_FORMAT)), F.try_to_timestamp(end, F.lit(_FORMAT))


def closed(control: DataFrame | None, table: str, suffix: str) -> list[str]:
    """The partitions of a source table that are closed: those attrep_cdc_partitions lists, which may name the
    table or its change table, and may list a partition more than once. They are collected: one a time slice.

    Raises:
        ConfigError: the control table is not there.
    """
    from pyspark.sql import functions as F

    if control is None:
        raise ConfigError(
            f"partitions=closed needs the table {TABLE}", where=table, hint="give it, or read partitions=all"
        )
    owner, dot, plain = table.rpartition(".")
    names = [plain.lower(), (plain + suffix).lower()]
    rows = control.filter(F.lower("TABLE_NAME").isin(names))
    if dot:
        rows = rows.filter(F.col("TABLE_OWNER").isNull() | (F.lower("TABLE_OWNER") == owner.lower()))
    return sorted(r[0] for r in rows.select("PARTITION_NAME").distinct().collect() if r[0])


def states(changes: DataFrame, name: str, closed: list[str]) -> DataFrame:
    """The partitions that a table's rows are in: `partition_name`, `started`, `ends` (from the name)
    and whether it is `closed`. `name` is the column of the partition's name; one shuffle of names."""
    from pyspark.sql import functions as F

    started, ends = times_of(F.col("partition_name"))
    done = F.col("partition_name").isin(closed) if closed else F.lit(False)
    rows = changes.select(F.col(name).alias("partition_name")).distinct()
    return rows.select("partition_name", started.alias("started"), ends.alias("ends"), done.alias("closed"))
