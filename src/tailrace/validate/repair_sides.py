"""The two sides of a repair: the target's current rows, and the rows it should have at its change number.

Both have the target's columns: mapped, and without ignored DDL. Rows that are marked as deleted are left out,
and so is the column with the mark.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ..apply.mapped_snapshots import CHANGED, is_loaded_with, loaded
from ..apply.mapping.table_map import place_of, task_map
from ..apply.reading import read_changes
from ..apply.route import Route
from ..capture.part_readers import PartReaders
from ..config.task import Task
from ..execution import Job
from ..lake import log
from ..model.change import Relation
from ..model.positions import BEFORE_ALL, ChangeRange
from ..model.steps import Steps
from ..query.state import state_at
from ..state import ledger, lifecycle
from ..state.baselines import Baseline, read_baselines
from ..state.totals import batches_of
from ..targets.change_batch import ChangeBatch
from ..targets.plans import SPECIAL
from ..targets.task_tables import target_tables
from .comparable_targets import without_deleted
from .file_rows import FileRows
from .postgresql_target import hold_target
from .sessions import Sessions
from .sides import LoadedRows, table_rows
from .sql_rows import write_query_rows
from .target_shape import TargetShape
from .target_versions import NOT_MAPPED, TargetVersion, deletion_mark, row_filter
from .validation import TableDifference, collect_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = "repair"
"""The kind of the jobs."""
_DDL = "its target ignores some DDL of the source: run `tailrace resync` to rebuild it"


@dataclass(frozen=True)
class TargetRows:
    """A table's current rows in its target, and their change number. If several sources share the target,
    only its own.

    `mark` is the column that marks deleted rows, which are left out.
    """

    task: Task
    table: str
    rows: TargetVersion | LoadedRows
    upto: int
    mark: str | None

    @property
    def columns(self) -> list[str]:
        """The columns, without the mark."""
        if isinstance(self.rows, LoadedRows):
            found = [c.name for c in self.rows.layout.columns]
        else:
            found = self.rows.tables.open(self.rows.path).schema.names
        return [n for n in found if n != self.mark]

    def read(self, sessions: Sessions, scratch: str) -> FileRows:
        """Returns the rows in files; `scratch` is a folder for rows that Spark computes."""
        if isinstance(self.rows, LoadedRows):
            found, own = self.rows.rows(), dict[str, str]()
        else:
            table = self.rows.open()
            if more := table.unread:
                spark = sessions.sql(f"the target of {self.table} has {', '.join(more)}")
                job = Job(KIND, f"{KIND} {self.table}: rows of the target", counts=False)
                return write_query_rows(spark, self._frame, scratch, job)
            found, own = table_rows(table, scratch), dict(self.rows.own)
        only = row_filter(found.data.schema.names, own, self.mark)
        return replace(found, columns={n: pc.field(n) for n in self.columns}, only=only)

    def _frame(self, spark: SparkSession) -> DataFrame:
        """Returns the rows of a target with versions in Spark."""
        assert isinstance(self.rows, TargetVersion)  # noqa: S101 - called only in that case
        return without_deleted(self.task, self.table, self.rows.rows(spark))


@dataclass(frozen=True)
class WantedRows:
    """The rows that the target should have: the validated source rows, and the changes in (`after`, `upto`]
    on top."""

    task: Task
    one: TableDifference
    relation: Relation
    after: int
    upto: int

    @property
    def plain(self) -> bool:
        """Whether no changes were applied since the validation."""
        return self.upto <= self.after

    def read(self, sessions: Sessions, scratch: str) -> FileRows:
        """Returns the rows in files; `scratch` is a folder for rows that Spark computes."""
        if self.plain:
            return self.one.both.left(sessions, scratch, KIND)
        table = self.one.result.table
        job = Job(KIND, f"{KIND} {table}: rows of the source with the changes applied since", counts=False)
        spark = sessions.sql(f"changes of {table} were applied since it was validated")
        return write_query_rows(spark, self._frame, scratch, job)

    def _frame(self, spark: SparkSession) -> DataFrame:
        """Returns the rows in Spark."""
        task, one, table = self.task, self.one, self.one.result.table
        rows, source = one.both.left_frame(spark), one.made.source
        numbers = ChangeRange(None if self.after < 0 else self.after, self.upto)
        later = ChangeBatch(table, source, numbers, task.changes_path(table), one.position)
        found = None if self.plain else read_changes(spark, later)
        if found is None:
            return rows
        stored, _ = batches_of(task.control_path("stored"), table)
        counts = {k: sum(b.tables[table].get(k, 0) for b in stored if b.upto > self.after) for k in SPECIAL}
        route = Route.of(source, one.made.follows, one.made.mapping, one.made.relation)
        changes, mine = route.through(found, counts)
        return state_at(rows, changes, self.relation, mine)


def current_rows(task: Task, table: str, scratch: str, sessions: Sessions) -> TargetRows:
    """Returns a table's current rows in its target; `scratch` is a folder for rows read from a database."""
    mark = deletion_mark(task, table)
    with hold_target(task, [table]) as held:
        if held is not None:
            found = held.table(table)
            folder = f"{scratch}/target"
            with PartReaders(task.baseline.workers, sessions.background, kind=KIND) as readers:
                loads = held.load(table, folder, readers)
                rows = collect_rows(found.layout, folder, loads, Steps(), "")
            return TargetRows(task, table, rows, found.upto, mark)
    place = place_of(task_map(task, table), lifecycle.read(task).target_names)
    tables = target_tables(task)
    newest = tables.open(tables.name(place.target))
    progress = newest.progress(place.app(table, task.apply_app)) or BEFORE_ALL
    reached = max(progress, baseline_of(task, table).after)
    now = TargetVersion(tables, newest.name, newest.version, place.partition, reached)
    return TargetRows(task, table, now, reached, mark)


def wanted_rows(task: Task, one: TableDifference, upto: int, have: Collection[str]) -> WantedRows | str:
    """Returns the rows that the target should have at a change number, or why they cannot be determined.

    `have` are the target's columns.
    """
    table = one.result.table
    stored, gone = batches_of(task.control_path("stored"), table)
    if (
        why := _refusal(task, one)
        or _not_applied(stored, upto)
        or _ledger_removed(stored, gone, one.position)
    ):
        return why
    relation = target_layout(task, table, one.made)
    names = {c.name for c in relation.columns}
    if not one.made.complete or names != set(have) or names != set(one.made.compared(one.both.source.layout)):
        return _DDL
    before = max((b.upto for b in stored if b.position < one.position), default=-1)
    # A batch may hold changes from before and after the position: `before` is never too late.
    since = [b.upto for b in stored if before < b.upto <= upto]
    return WantedRows(task, one, relation, before, upto if since else before)


def target_layout(task: Task, table: str, made: TargetShape) -> Relation:
    """Returns the target's layout, under the table's first known name."""
    first = baseline_of(task, table).relation
    return replace(made.relation, schema=first.schema, name=first.name)


def baseline_of(task: Task, table: str) -> Baseline:
    """Returns a table's baseline."""
    return read_baselines(task.control_path("baselines"))[table]


def _refusal(task: Task, one: TableDifference) -> str | None:
    """Returns why a table cannot be repaired at all, or None."""
    table = one.result.table
    if one.result.columns:
        return f"its columns differ: {one.result.columns}"
    if task.table(table).rule_mode == "archive":
        return "its target is an archive, not a copy of the source"
    digest, found = task_map(task, table).digest, loaded(task.control_path("mapped"))
    if (made := is_loaded_with(digest, baseline_of(task, table), found)) is None:
        return f"{NOT_MAPPED} (`tailrace status`)"
    if not made:
        return CHANGED
    return _overtaken(task, one)


def _overtaken(task: Task, one: TableDifference) -> str | None:
    """Returns the event since the snapshot that prevents a repair, or None."""
    table = one.result.table
    if lifecycle.read(task)[table].busy:
        return "its target is being replaced or renamed: run the repair again once that is done"
    if baseline_of(task, table).position > one.position:
        return "it got a new baseline since the snapshot: run the repair again"
    seen = log.history(task.relations_path).get(table, [])
    if any(h.from_position.hex().upper() >= one.position for h in seen):
        return "its layout has changed since the snapshot: run the repair again"
    return None


def _ledger_removed(stored: list[ledger.Stored], gone: int | None, position: str) -> str | None:
    if gone is not None and not any(b.position < position for b in stored):
        return "the records of its batches at that position have been removed (`maintenance.keep_ledger`)"
    return None


def _not_applied(stored: list[ledger.Stored], upto: int) -> str | None:
    if any(b.upto > upto for b in stored):
        return "it has changes that are not applied yet (is it paused, or suspended?): apply them first"
    return None
