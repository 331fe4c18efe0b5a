"""The versions of a Delta target: which one has all changes up to a position, and none behind it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.schema import Field

from ..apply.mapping.table_map import place_of, task_map
from ..apply.targets.delta.layout_mark import is_marked
from ..config.task import Task
from ..engine.rules import SOFT_COLUMN
from ..errors import ConfigError
from ..lake import delta as lake
from ..lake.past import at_version
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
    """A Delta target's newest version not after a position.

    Raises:
        ConfigError: there is no target.
    """
    found = Versions.of(task, taken)
    if found.newest < 0:
        raise missing(taken.table, found.path)
    return found.before(limit)


def refuse_waiting(task: Task, taken: Baseline) -> None:
    """Raises ConfigError for a table whose newest baseline waits to be mapped: its target has an older one,
    or none."""
    from ..apply.mapped_snapshots import loaded, waits_in_staging

    if taken.version < 0 and waits_in_staging(taken, loaded(task.control_path("mapped"))):
        raise ConfigError(WAITS, where=taken.table, hint="`tailrace status` says what it waits for")


def missing(table: str, where: str) -> ConfigError:
    """The error for a table that the target does not have."""
    hint = "it was dropped: take a new baseline (`tailrace resync`, or `add` for a table that was removed)"
    return ConfigError(f"{table} is not in the target", where=where, hint=hint)


WAITS = "its baseline waits to be mapped, so the target has no rows of it yet"


@dataclass(frozen=True)
class Versions:
    """The versions that a Delta target has so far.

    Attributes:
        path: its place.
        app: whose progress counts.
        mark: the column that marks deleted rows.
        base: the version of the baseline, with its change number.
        batches: the position and version of each batch since then, in order.
        newest: the newest version.
    """

    path: str
    app: str
    mark: str | None
    base: Version
    batches: Sequence[tuple[str, int]]
    newest: int

    @staticmethod
    def of(task: Task, taken: Baseline) -> Versions:
        """Those of a table with its baseline."""
        names = target_names(of_task(task.orders_path, {}))
        place = place_of(task_map(task, taken.table), names)
        path, app = task.target_path(place.target), place.app(taken.table, task.apply_app)
        newest, version = lake.version(path), taken.version
        if version < 0:
            from ..apply.mapped_snapshots import loaded

            version = loaded(task.control_path("mapped"))[taken.table][2]
        records = records_of(task.control_path("applied"), taken.table)
        found = ((str(r["position"]), int(str(r["version"]))) for r in records)
        # Apply continued while a new baseline was read: what it did then is gone.
        batches = sorted(one for one in found if one[0] >= taken.position and version < one[1] <= newest)
        base = Version(path, version, place.partition, taken.after)
        return Versions(path, app, mark_of(task, taken.table), base, batches, newest)

    def before(self, limit: str) -> Version:
        """The newest version not after a position."""
        version, number, newest = self.base.version, self.base.number, self.newest
        for position, made in self.batches:
            if position >= limit:
                newest = made - 1
                break
            # The number that a batch has reached in the table itself: the batch may have ended early.
            version, number = made, -1
        if number < 0:
            number = max(lake.reached(at_version(self.path, version), self.app), 0)
        return replace(self.base, version=self._newest_without(number, version, newest), number=number)

    def _newest_without(self, number: int, version: int, newest: int) -> int:
        """The newest version up to `newest` without changes after a number, and the layout of `version`:
        changes by others to the target count too. The column `mark` may be newer: it does not belong to the
        layout."""
        if newest <= version:
            return version
        later = at_version(self.path, newest).history(newest - version)
        anew = [int(h["version"]) for h in later if is_marked(h)]
        columns = _columns(at_version(self.path, version), self.mark)
        for newer in range(min([*anew, newest + 1]) - 1, version, -1):
            table = at_version(self.path, newer)
            if lake.reached(table, self.app) <= number and _columns(table, self.mark) == columns:
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
        mine.append(pc.field(mark).is_null())
    return reduce(and_, mine) if mine else None


def mark_of(task: Task, table: str) -> str | None:
    """The column that marks a target's deleted rows; None: deleted rows are removed."""
    one = task.table(table)
    return one.soft_delete or SOFT_COLUMN if one.rule_mode == "soft_delete" else None
