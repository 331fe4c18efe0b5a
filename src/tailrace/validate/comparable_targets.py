"""Targets with rules: whether they can be compared with their source, and which of their rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..config.task import Task
from ..errors import ConfigError
from ..targets.images import col
from .target_versions import deletion_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("tailrace.validate")


def comparable_tables(task: Task, tables: Sequence[str], *, named: bool) -> list[str]:
    """Returns the tables whose targets are copies of their source; archives are skipped with a warning.

    Raises:
        ConfigError: a table is an archive, and the tables were `named` by the user.
    """
    archives = [t for t in tables if task.table(t).rule_mode == "archive"]
    if archives and named:
        raise ConfigError(
            f"{', '.join(archives)} is archived: its target is not a copy of the source",
            where=task.name,
            hint="validate other tables",
        )
    for table in archives:
        logger.warning(
            "%s is archived, its target is not a copy of the source: not compared",
            table,
            extra={"table": table},
        )
    return [t for t in tables if t not in archives]


def without_deleted(task: Task, table: str, rows: DataFrame) -> DataFrame:
    """Returns a target's rows without those marked as deleted, and without the mark."""
    mark = deletion_mark(task, table)
    if mark is None or mark not in rows.columns:
        return rows
    return rows.where(col(mark).isNull()).drop(mark)
