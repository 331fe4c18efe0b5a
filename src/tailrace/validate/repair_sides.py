"""The two sides of a repair: a target's current rows, and what they should be at that change number.

Both have the columns that the target makes of its source: mapped, DDL that is ignored left out. Rows that are
marked as deleted count as gone, and the mark is no column of either.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ..apply.mapped_snapshots import CHANGED, loaded, made_with
from ..apply.mapping.shared_rows import own_rows
from ..apply.mapping.table_map import place_of, task_map
from ..apply.one_route import Route
from ..apply.plan import SPECIAL
from ..apply.reading import read_changes
from ..apply.segment import Segment
from ..apply.targets.delta import distributed
from ..capture.part_readers import PartReaders
from ..config.task import Task
from ..execution import Job
from ..lake import delta as lake
from ..lake import log
from ..lake.past import at_version
from ..model.change import Relation
from ..model.steps import Steps
from ..query.state import state_at
from ..state import ledger, lifecycle
from ..state.baselines import Baseline, read_baselines
from ..state.totals import batches_of
from .file_rows import FileRows
from .mapped import Made
from .postgresql_side import hold
from .rules import living
from .sessions import Sessions
from .sides import Landed, rows_of_table
from .sql_rows import rows_of_query
from .tables import Difference, landed
from .versions import WAITS, Version, mark_of, own_and_living

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = "repair"
"""The kind of its jobs."""
_DDL = "its target does not follow every DDL statement of the source: `tailrace resync` rebuilds it"


@dataclass(frozen=True)
class TargetRows:
    """A table's rows in its target as it is now, of several sources its own, and the change number that they
    have reached; `mark`: the column that marks deleted rows, which are none of them."""

    task: Task
    table: str
    rows: Version | Landed
    upto: int
    mark: str | None

    @property
    def columns(self) -> list[str]:
        """Their columns."""
        if isinstance(self.rows, Landed):
            found = [c.name for c in self.rows.layout.columns]
        else:
            found = lake.arrow_schema(self.rows.path).names
        return [n for n in found if n != self.mark]

    def read(self, sessions: Sessions, scratch: str) -> FileRows:
        """The rows in files; `scratch`: a folder for what Spark's SQL computes."""
        if isinstance(self.rows, Landed):
            found, own = self.rows.rows(), dict[str, str]()
        else:
            delta = at_version(self.rows.path, self.rows.version)
            if more := lake.unread(delta):
                spark = sessions.sql(f"the target of {self.table} has {', '.join(more)}")
                job = Job(KIND, f"{KIND} {self.table}: rows of the target", counts=False)
                return rows_of_query(spark, self._frame, scratch, job)
            found, own = FileRows(lake.dataset(delta), {}, rows=rows_of_table(delta)), dict(self.rows.own)
        only = own_and_living(found.data.schema.names, own, self.mark)
        return replace(found, columns={n: pc.field(n) for n in self.columns}, only=only)

    def _frame(self, spark: SparkSession) -> DataFrame:
        """The rows of a Delta target for Spark's SQL."""
        assert isinstance(self.rows, Version)  # noqa: S101 - called only in that case
        path, version = self.rows.path, self.rows.version
        rows = distributed.rows_of(spark, path, at_version(path, version))
        return living(self.task, self.table, own_rows(rows, self.rows.own))


@dataclass(frozen=True)
class WantedRows:
    """What the target's rows should be: the source's rows of the validation, and what was applied since: the
    changes in (`after`, `upto`]; in which layout."""

    task: Task
    one: Difference
    relation: Relation
    after: int
    upto: int

    @property
    def plain(self) -> bool:
        """Whether nothing was applied since."""
        return self.upto <= self.after

    def read(self, sessions: Sessions, scratch: str) -> FileRows:
        """The rows in files; `scratch`: a folder for what Spark's SQL computes."""
        if self.plain:
            return self.one.both.left(sessions, scratch, KIND)
        table = self.one.result.table
        job = Job(KIND, f"{KIND} {table}: rows of the source with the changes applied since", counts=False)
        spark = sessions.sql(f"changes of {table} were applied since it was validated")
        return rows_of_query(spark, self._frame, scratch, job)

    def _frame(self, spark: SparkSession) -> DataFrame:
        """The rows for Spark's SQL."""
        task, one, table = self.task, self.one, self.one.result.table
        rows, source = one.both.left_frame(spark), one.made.source
        later = Segment(self.after, self.upto, one.position, source, source)
        found = None if self.plain else read_changes(spark, task.changes_path(table), later)
        if found is None:
            return rows
        stored, _ = batches_of(task.control_path("stored"), table)
        counts = {k: sum(b.tables[table].get(k, 0) for b in stored if b.upto > self.after) for k in SPECIAL}
        route = Route.of(source, one.made.follows, one.made.mapping, one.made.relation)
        changes, mine = route.through(found, counts)
        return state_at(rows, changes, self.relation, mine)


def there(task: Task, table: str, scratch: str, sessions: Sessions) -> TargetRows:
    """A table's rows in its target; `scratch`: a folder for rows that are read from a database."""
    mark = mark_of(task, table)
    with hold(task, [table]) as held:
        if held is not None:
            found = held.table(table)
            folder = f"{scratch}/target"
            with PartReaders(task.baseline.workers, sessions.background, kind=KIND) as readers:
                loads = held.load(table, folder, readers)
                rows = landed(found.layout, folder, loads, Steps(), "")
            return TargetRows(task, table, rows, found.upto, mark)
    place = place_of(task_map(task, table), lifecycle.read(task).target_names)
    path = task.target_path(place.target)
    reached = lake.progress(path, place.app(table, task.apply_app))
    reached = max(reached, taken_of(task, table).after)
    now = Version(path, lake.version(path), place.partition, reached)
    return TargetRows(task, table, now, reached, mark)


def wanted(task: Task, one: Difference, upto: int, have: Collection[str]) -> WantedRows | str:
    """What the target's rows should be at a change number; or why nobody can tell.

    `have`: the columns of the rows that are there.
    """
    table = one.result.table
    stored, gone = batches_of(task.control_path("stored"), table)
    if why := _refusal(task, one) or _waits(stored, upto) or _forgotten(stored, gone, one.position):
        return why
    relation = layout_of(task, table, one.made)
    names = {c.name for c in relation.columns}
    if not one.made.whole or names != set(have) or names != set(one.made.compared(one.both.source.layout)):
        return _DDL
    before = max((b.upto for b in stored if b.position < one.position), default=-1)
    # A batch may hold changes from before and after the position: `before` is never too late.
    since = [b.upto for b in stored if before < b.upto <= upto]
    return WantedRows(task, one, relation, before, upto if since else before)


def layout_of(task: Task, table: str, made: Made) -> Relation:
    """The target's layout, under the name by which the table was first known."""
    first = taken_of(task, table).relation
    return replace(made.relation, schema=first.schema, name=first.name)


def taken_of(task: Task, table: str) -> Baseline:
    """A table's baseline."""
    return read_baselines(task.control_path("baselines"))[table]


def _refusal(task: Task, one: Difference) -> str | None:
    """Why a table cannot be repaired at all."""
    table = one.result.table
    if one.result.columns:
        return f"its columns differ: {one.result.columns}"
    if task.table(table).rule_mode == "archive":
        return "its target is an archive, not a copy of the source"
    digest, found = task_map(task, table).digest, loaded(task.control_path("mapped"))
    if (made := made_with(digest, taken_of(task, table), found)) is None:
        return f"{WAITS} (`tailrace status`)"
    if not made:
        return CHANGED
    return _overtaken(task, one)


def _overtaken(task: Task, one: Difference) -> str | None:
    """What has become of a table since the snapshot that keeps it from being repaired."""
    table = one.result.table
    if lifecycle.read(task)[table].busy:
        return "its target is being replaced or renamed: run the repair again once that is done"
    if taken_of(task, table).position > one.position:
        return "it got a new baseline since the snapshot: run the repair again"
    seen = log.history(task.relations_path).get(table, [])
    if any(h.from_position.hex().upper() >= one.position for h in seen):
        return "its layout has changed since the snapshot: run the repair again"
    return None


def _forgotten(stored: list[ledger.Stored], gone: int | None, position: str) -> str | None:
    if gone is not None and not any(b.position < position for b in stored):
        return "the records of its batches at that position have been removed (`maintenance.keep_ledger`)"
    return None


def _waits(stored: list[ledger.Stored], upto: int) -> str | None:
    if any(b.upto > upto for b in stored):
        return "it has changes that are not applied yet (is it paused, or suspended?): apply them first"
    return None
