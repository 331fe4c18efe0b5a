"""The versions of a Delta target: which one has all changes up to a position, and none behind it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.schema import Field

from ..apply.mapping.table_map import place_of, task_map
from ..config.task import Task
from ..engine.rules import SOFT_COLUMN
from ..lake import delta as lake
from ..state.ledger import Baseline
from ..state.orders import of_task, target_names
from ..state.totals import records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Version:
    """A version of a Delta target: which of its rows are the source's own, and the change number reached."""

    path: str
    version: int
    own: Mapping[str, str]
    number: int

    def rows(self, spark: SparkSession) -> DataFrame:
        """Its rows."""
        from ..apply.mapping.shared_rows import own_rows

        df = spark.read.format("delta").option("versionAsOf", self.version).load(self.path)
        return own_rows(df, self.own)


def version_before(task: Task, taken: Baseline, limit: str) -> Version:
    """A Delta target's newest version not after a position."""
    names = target_names(of_task(task.orders_path, {}))
    place = place_of(task_map(task, taken.table), names)
    path, app = task.target_path(place.target), task.apply_app
    version, number = taken.version, taken.after
    if version < 0:
        from ..apply.mapped_snapshots import loaded

        version = loaded(task.control_path("mapped"))[taken.table][2]
    applied = [
        r
        for r in records_of(task.control_path("applied"), taken.table)
        if taken.position <= str(r["position"]) < limit
        # Apply continued while a new baseline was read: what it did then is gone.
        and int(str(r["version"])) > version
    ]
    app = f"{app}/{taken.table}" if place.partition else app
    if applied:
        # The number that a batch has reached in the table itself: the batch may have ended early.
        version = max(int(str(r["version"])) for r in applied)
        number = int(DeltaTable(path, version=version).transaction_version(app) or 0)
    version = _newest_without(path, app, number, version, mark_of(task, taken.table))
    return Version(path, version, place.partition, number)


def _newest_without(path: str, app: str, number: int, version: int, mark: str | None) -> int:
    """The newest version without changes after a number, and the columns of `version`: changes by others to
    the target count too. The column `mark` may be newer: it does not belong to the layout."""
    columns = _columns(DeltaTable(path, version=version), mark)
    for newer in range(lake.version(path), version, -1):
        table = DeltaTable(path, version=newer)
        if lake.reached(table, app) <= number and _columns(table, mark) == columns:
            return newer
    return version


def _columns(table: DeltaTable, mark: str | None) -> list[Field]:
    return [f for f in table.schema().fields if f.name != mark]


def own_and_living(
    columns: Collection[str], own: Mapping[str, str], mark: str | None
) -> pc.Expression | None:
    """Which rows of a target with these columns are a source's own and not marked as deleted; None: all.

    >>> own_and_living(["site", "id"], {}, "gone") is None
    True
    """
    mine = [pc.field(name).cast(pa.string()) == value for name, value in own.items()]
    if mark is not None and mark in columns:
        mine.append(lake.is_missing(mark))
    return reduce(and_, mine) if mine else None


def mark_of(task: Task, table: str) -> str | None:
    """The column that marks a target's deleted rows; None: deleted rows are removed."""
    one = task.table(table)
    return one.soft_delete or SOFT_COLUMN if one.rule_mode == "soft_delete" else None
