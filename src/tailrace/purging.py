"""`tailrace purge`: consumed changes taken out of a folder of OpenEdge tables, in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .formats.openedge.purge import gone, purge_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def purge(
    spark: SparkSession,
    folder: str,
    table: str,
    consumers: Mapping[str, int],
    *,
    low: int = 0,
    high: int | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Deletes the changes low..high of one source table (up to the slowest consumer, when `high` is not
    given); what a crash interrupts is made good by doing it again.

    Gives `table`, `low`, `high`, and `deleted`: rows by the vendor's table.

    Raises:
        ConfigError: the folder has no Delta tables, or no consumer is named.
        PositionError: some consumer has not done with the range.
        FormatError: there is no such source table.
    """
    if not consumers:
        raise ConfigError("no consumer is named", hint="say how far each has read: --consumer NAME=SEQUENCE")
    root = Path(folder)
    paths = {p.name: str(p) for p in sorted(root.glob("*")) if (p / "_delta_log").is_dir()}
    if not paths:
        raise ConfigError(
            f"{folder} holds no Delta tables",
            hint="purge works in place; write them with tailrace convert --files delta",
        )
    high = min(consumers.values()) if high is None else high
    tables = {n: spark.read.format("delta").load(p) for n, p in paths.items()}
    found = gone(tables, table, low=low, high=high, consumers=consumers)
    deleted = {n: tables[n].filter(condition).count() for n, condition in found.items()}
    if not dry_run:
        purge_delta(spark, paths, table, low=low, high=high, consumers=consumers)
    return {"table": table, "low": low, "high": high, "deleted": deleted}
