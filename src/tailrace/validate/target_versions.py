"""Versions of a target made of files: finds the newest one without changes after a position."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..apply.mapping.table_map import place_of, task_map
from ..apply.target_owner import refuse_other
from ..config.task import Task
from ..engine.rules import SOFT_COLUMN
from ..errors import ConfigError
from ..lake.table import LakeTable, LakeTables
from ..model.positions import BEFORE_ALL, ChangeNumber, order_key
from ..query.positions import PositionRange
from ..state import lifecycle
from ..state.baselines import Baseline
from ..state.declarations import APPLIED
from ..state.rolling import Ledger
from ..state.totals import records_of
from ..targets.lake.layout import is_marked
from ..targets.spark_rows import spark_rows
from ..targets.task_tables import target_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TargetVersion:
    """A version of a target: the values that identify the source's own rows, and its change number."""

    tables: LakeTables
    path: str
    version: int
    own: Mapping[str, str]
    number: ChangeNumber

    def rows(self, spark: SparkSession) -> DataFrame:
        """Returns its rows in Spark."""
        from ..targets.multi_source import rows_in_partition

        return rows_in_partition(spark_rows(spark, self.open()), self.own)

    def open(self) -> LakeTable:
        """Opens the version."""
        return self.tables.open(self.path, self.version)


def version_before(task: Task, taken: Baseline, limit: str) -> TargetVersion:
    """Returns a target's newest version not after a position.

    Raises:
        ConfigError: there is no target.
    """
    found = TargetVersions.of(task, taken)
    if found.newest is None:
        raise missing_target(taken.table, found.path)
    return found.before(limit)


def refuse_unmapped(task: Task, taken: Baseline) -> None:
    """Raises ConfigError if a table's newest baseline is not mapped yet: its target has an older one, or
    none."""
    from ..apply.mapped_snapshots import loaded, waits_in_staging

    if taken.version is None and waits_in_staging(taken, loaded(task.control_path("mapped"))):
        raise ConfigError(NOT_MAPPED, where=taken.table, hint="`tailrace status` shows the reason")


def missing_target(table: str, where: str) -> ConfigError:
    """Returns the error for a table that the target does not have."""
    hint = "load a new baseline (`tailrace resync`, or `tailrace add` for a table that was removed)"
    return ConfigError(f"{table} is not in the target", where=where, hint=hint)


NOT_MAPPED = "its baseline is not mapped yet, so the target has no rows of it"


@dataclass(frozen=True)
class TargetVersions:
    """The versions of a target.

    Attributes:
        tables: the tables of the target's format.
        path: the target's name.
        app: the application id of the progress.
        mark: the column that marks deleted rows.
        base: the version of the baseline, with its change number.
        batches: position, version and change number of each later batch, in order.
        newest: the newest version; None if the target or its versions of this baseline are gone.
    """

    tables: LakeTables
    path: str
    app: str
    mark: str | None
    base: TargetVersion
    batches: Sequence[tuple[str, int, int]]
    newest: int | None

    @staticmethod
    def of(task: Task, taken: Baseline, following: Baseline | None = None) -> TargetVersions:
        """Returns the versions of a table since its baseline; `following` is the baseline that replaced its
        rows."""
        names = lifecycle.read(task).target_names
        place = place_of(task_map(task, taken.table), names)
        tables = target_tables(task)
        path, app = tables.name(place.target), place.app(taken.table, task.apply_app)
        refuse_other(task, place, taken)
        newest = tables.open(path).version if tables.exists(path) else None
        version = taken.version
        if following is not None and newest is not None:
            newest = None if following.version is None else min(newest, following.version - 1)
        if version is None:
            from ..apply.mapped_snapshots import loaded

            version = loaded(task.control_path("mapped"))[taken.table][2]
        records = records_of(task.control_path("applied"), taken.table)
        found = ((str(r["position"]), order_key(r["version"]), int(r["upto"])) for r in records)
        # Apply continued while a new baseline was read; the baseline replaced those batches.
        batches = sorted(
            one for one in found if one[0] >= taken.position and version < one[1] <= order_key(newest)
        )
        base = TargetVersion(tables, path, version, place.partition, taken.after)
        return TargetVersions(tables, path, app, deletion_mark(task, taken.table), base, batches, newest)

    @property
    def intact(self) -> bool:
        """Whether the oldest kept version is the recorded one; versions of a target that was
        removed restart."""
        if self.newest is None:
            return False
        recorded = [(self.base.version, int(self.base.number))]
        recorded += [(version, number) for _, version, number in self.batches]
        kept = set(self.tables.versions(self.path))
        for version, number in recorded:
            if version in kept and version <= self.newest:
                return self._progress(version) == number
        return False

    def before(self, limit: str) -> TargetVersion:
        """Returns the newest kept version (`lake.thinning`) that is not after a position."""
        number: ChangeNumber | None = self.base.number
        version, newest = self.base.version, order_key(self.newest)
        kept = self.tables.versions(self.path)
        readable = set(kept)
        for position, made, _ in self.batches:
            if position >= limit:
                newest = made - 1
                break
            # The change number is read from the table, because the batch may have ended early.
            if made in readable:
                version, number = made, None
        if number is None:
            number = self._progress(version) or BEFORE_ALL
        later = [v for v in kept if version < v <= newest]
        return replace(self.base, version=self._newest_without(number, version, later), number=number)

    def _progress(self, version: int) -> ChangeNumber | None:
        """Returns the change number of a version."""
        return self.tables.open(self.path, version).progress(self.app)

    def exactly(self, record: str, table: str, point: PositionRange) -> TargetVersion | None:
        """Returns the kept version with a table's rows at a position, as recorded in `control/applied`.

        Returns None without such a version; then changes have to be applied to an earlier one.
        """
        names = ["upto", "change_seq", "position", "table", "version"]
        rows = sorted(Ledger(record, APPLIED).batches(names).to_pylist(), key=lambda r: r["upto"])
        column = {"number": "upto", "stream_position": "position"}.get(point.column, "change_seq")
        value = int(point.high) if column == "upto" else point.high
        mine = [
            r
            for r in rows
            if r["table"] == table and self.base.version < order_key(r["version"]) <= order_key(self.newest)
        ]
        before = [r for r in mine if r[column] <= value]
        if not before:
            return None
        last, end = before[-1], next((r["upto"] for r in mine if r[column] > value), rows[-1]["upto"] + 1)
        # Batches between this one and the table's next one have changes of other tables only.
        if not any(r[column] >= value for r in rows if last["upto"] <= r["upto"] < end):
            return None
        if last["version"] not in self.tables.versions(self.path):
            return None
        if self._progress(last["version"]) != last["upto"]:
            return None  # the batch ended early, or another process wrote this version
        return replace(self.base, version=last["version"], number=last["upto"])

    def _newest_without(self, number: int, version: int, later: Sequence[int]) -> int:
        """Returns the last of `later` versions with the change number and the layout of `version`, else
        `version`.

        So changes of other writers to the target are included. Added columns are allowed: `mark`, those of
        the next layout, and those of other writers.

        Raises:
            ConfigError: another writer dropped columns or changed their types.
        """
        if not later:
            return version
        history = self.tables.open(self.path, later[-1]).history(later[-1] - version)
        first = min([int(h["version"]) for h in history if is_marked(h)], default=later[-1] + 1)
        columns = _columns(self.tables.open(self.path, version), self.mark)
        for newer in reversed([v for v in later if v < first]):
            table = self.tables.open(self.path, newer)
            if order_key(table.progress(self.app)) > number:
                continue
            now = _columns(table, self.mark)
            if lost := [name for name, field in columns.items() if now.get(name) != field]:
                if newer - version != later.index(newer) + 1:
                    continue  # a commit with another layout may be among those that were removed
                raise ConfigError(
                    f"columns are missing in version {newer} of the target, or have another type: "
                    f"{', '.join(lost)}",
                    where=self.path,
                    hint="another program wrote it: run `tailrace resync` to replace the target",
                )
            return newer
        return version


def _columns(table: LakeTable, mark: str | None) -> dict[str, pa.Field]:
    return {f.name: f for f in table.schema if f.name != mark}


def row_filter(columns: Collection[str], own: Mapping[str, str], mark: str | None) -> pc.Expression | None:
    """Returns a filter for the source's own rows that are not marked as deleted; None for all rows.

    >>> row_filter(["site", "id"], {}, "gone") is None
    True
    """
    mine = [pc.field(name).cast(pa.string()) == value for name, value in own.items()]
    if mark is not None and mark in columns:
        mine.append(pc.field(mark).is_null())
    return reduce(and_, mine) if mine else None


def deletion_mark(task: Task, table: str) -> str | None:
    """Returns the column that marks a target's deleted rows; None if deleted rows are removed."""
    one = task.table(table)
    return one.soft_delete or SOFT_COLUMN if one.rule_mode == "soft_delete" else None
