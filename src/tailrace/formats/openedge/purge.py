"""Removes consumed changes from OpenEdge's tables, as the vendor allows it.

It deletes the range of `_Change-Sequence` of one source table that was read: first its change-table rows
(both images, both halves), then its tracking rows; nothing that a consumer has not read yet. Policies stay.
Source: spec/openedge.md §2.1 (rows may be deleted, never created), §6.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, FormatError, PositionError
from ...model.quoting import quoted
from ..base import Tables, VendorTable
from ..shape import find_columns
from ..spark_functions import F
from .options import OpenEdgeOptions
from .reader import locate
from .shares import share_of
from .tables import CHANGE, TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def purge(
    tables: Tables,
    source: str,
    *,
    low: int,
    high: int,
    consumers: Mapping[str, int],
    options: OpenEdgeOptions | None = None,
) -> dict[str, DataFrame]:
    """Returns the tables without the changes low..high of one source table.

    Args:
        tables: the vendor's tables.
        source: the source table, `owner.table`.
        low: first `_Change-Sequence` that was read.
        high: last one.
        consumers: every consumer -> the last `_Change-Sequence` of this table that it has processed.
        options: as for `read`.

    Raises:
        PositionError: the range is empty, or a consumer has not processed it.
        FormatError: the source table does not exist.
    """
    found = removed_rows(tables, source, low=low, high=high, consumers=consumers, options=options)
    return {n: df.filter(~found[n]) if n in found else df for n, df in tables.items()}


def purge_delta(
    spark: SparkSession,
    paths: Mapping[str, str],
    source: str,
    *,
    low: int,
    high: int,
    consumers: Mapping[str, int],
    options: OpenEdgeOptions | None = None,
) -> None:
    """Does `purge` in place, for Delta tables: name -> path. It is idempotent."""
    from delta.tables import DeltaTable

    kept = {n: DeltaTable.forPath(spark, p) for n, p in paths.items()}
    tables = {n: t.toDF() for n, t in kept.items()}
    found = removed_rows(tables, source, low=low, high=high, consumers=consumers, options=options)
    for name, condition in found.items():
        kept[name].delete(condition)


def purge_folder(
    spark: SparkSession,
    folder: str,
    table: str,
    consumers: Mapping[str, int],
    *,
    low: int = 0,
    high: int | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Deletes the changes low..high of one source table (by default up to the slowest consumer); can be
    repeated after an interruption.

    Returns `table`, `low`, `high`, and `deleted`: rows by the vendor's table.

    Raises:
        ConfigError: the folder has no Delta tables, or no consumer is given.
        PositionError: a consumer has not processed the range.
        FormatError: the source table does not exist.
    """
    if not consumers:
        raise ConfigError(
            "no consumer is given", hint="give each with what it has read: --consumer NAME=SEQUENCE"
        )
    root = Path(folder)
    paths = {p.name: str(p) for p in sorted(root.glob("*")) if (p / "_delta_log").is_dir()}
    if not paths:
        raise ConfigError(
            f"{folder} has no Delta tables",
            hint="purge works in place; write them with tailrace convert --files delta",
        )
    high = min(consumers.values()) if high is None else high
    tables = {n: spark.read.format("delta").load(p) for n, p in paths.items()}
    found = removed_rows(tables, table, low=low, high=high, consumers=consumers)
    deleted = {n: tables[n].filter(condition).count() for n, condition in found.items()}
    if not dry_run:
        purge_delta(spark, paths, table, low=low, high=high, consumers=consumers)
    return {"table": table, "low": low, "high": high, "deleted": deleted}


def removed_rows(
    tables: Tables,
    source: str,
    *,
    low: int,
    high: int,
    consumers: Mapping[str, int],
    options: OpenEdgeOptions | None = None,
) -> dict[str, Column]:
    """Returns table name -> which of its rows to remove, the change table first."""
    if low > high:
        raise PositionError(
            f"no change from {low} to {high}", where=source, hint="give the range that was read"
        )
    slower = {who: at for who, at in consumers.items() if at < high}
    if slower or not consumers:
        who, at = min(slower.items(), key=lambda b: b[1]) if slower else ("no consumer", low - 1)
        raise PositionError(
            f"{who} has read changes up to {at}, not {high}",
            where=source,
            hint="purge only up to the slowest consumer's position",
        )
    place = locate(tables, options or OpenEdgeOptions())
    mine = next((s for s in place.sources if s.name.lower() == source.lower()), None)
    if mine is None:
        there = ", ".join(s.name for s in place.sources)
        raise FormatError(f"no source table {source}", hint=f"there are {there}")

    def within(df: DataFrame, table: VendorTable) -> Column:
        names = find_columns(df.columns, table, where=source)
        seq = F.col(quoted(names["_Change-Sequence"])).try_cast("bigint")
        return F.coalesce(seq.between(low, high), F.lit(False))

    found = {}
    if mine.change_table is not None:
        found[mine.change_table] = within(tables[mine.change_table], CHANGE)
    if place.tracking is not None:
        df = tables[place.tracking]
        share = share_of(mine, df.columns, len(place.sources) == 1)
        found[place.tracking] = within(df, TRACKING) & (F.lit(False) if share is None else share)
    return found
