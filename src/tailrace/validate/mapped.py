"""What validation compares if a target is mapped, or does not follow every DDL statement of its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.schema import Field

from ..apply.fold import col
from ..apply.loading import loaded
from ..apply.mapped import rows
from ..apply.mapping import Prepared
from ..apply.shared import own_rows
from ..apply.table_map import place_of, task_map
from ..config.task import Task
from ..lake import delta as lake
from ..model.change import Relation
from ..state.ledger import Baseline
from ..state.orders import of_task, target_names
from ..state.totals import records_of
from .rules import mark_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Made:
    """What a target makes of its source: the `source`'s layout that it has reached, the layout it `follows`
    (without ignored DDL), its mapping."""

    source: Relation
    follows: Relation
    mapping: Prepared | None

    @property
    def relation(self) -> Relation:
        """The target's layout."""
        return self.mapping.relation if self.mapping else self.follows

    @property
    def whole(self) -> bool:
        """Whether the source has everything that the target has: no column was kept that the source dropped,
        and no type or key that it changed. (A column's name may be an old one, and new columns may be
        missing.)"""
        have = {c.attnum: (c.type, c.key) for c in self.source.columns}
        keys = [{c.attnum for c in one.columns if c.key} for one in (self.source, self.follows)]
        return keys[0] == keys[1] and all(have.get(c.attnum) == (c.type, c.key) for c in self.follows.columns)

    def names(self, now: Relation) -> dict[str, str]:
        """Columns of the source (its layout `now`) that can be compared -> their names in the target before
        mapping, without columns that the target never got."""
        seen = {c.attnum: c for c in self.source.columns}
        names = {c.attnum: c.name for c in self.follows.columns}
        shown = {}
        for c in now.columns:
            known = seen.get(c.attnum)
            if known is None or known.name != c.name:  # no row has used it yet
                shown[c.name] = c.name
            elif c.attnum in names:
                shown[c.name] = names[c.attnum]
        return shown

    @property
    def kept(self) -> list[str]:
        """Columns that the target kept when the source dropped them: they are not compared."""
        seen = {c.attnum for c in self.source.columns}
        return [c.name for c in self.follows.columns if c.attnum not in seen]

    def left(self, now: Relation, df: DataFrame) -> DataFrame:
        """The source's rows (its layout `now`) as the target should have them."""
        df = df.select(*[col(n).alias(to) for n, to in self.names(now).items()])
        return rows(df, self.mapping) if self.mapping else df


@dataclass(frozen=True)
class Version:
    """A version of a Delta target: which of its rows are the source's own, and the change number reached."""

    path: str
    version: int
    own: Mapping[str, str]
    number: int

    def rows(self, spark: SparkSession) -> DataFrame:
        """Its rows."""
        df = spark.read.format("delta").option("versionAsOf", self.version).load(self.path)
        return own_rows(df, self.own)


def version_before(task: Task, taken: Baseline, limit: str) -> Version:
    """A Delta target's newest version not after a position."""
    names = target_names(of_task(task.orders_path, {}))
    place = place_of(task_map(task, taken.table), names)
    path, app = task.target_path(place.target), task.apply_app
    version, number = taken.version, taken.after
    if version < 0:
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
        reached = table.transaction_version(app)
        if (-1 if reached is None else reached) <= number and _columns(table, mark) == columns:
            return newer
    return version


def _columns(table: DeltaTable, mark: str | None) -> list[Field]:
    return [f for f in table.schema().fields if f.name != mark]
