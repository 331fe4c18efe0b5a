"""The two sides of a validated table: the source's rows in a snapshot, and the target's rows at its position.

Both are files. Rows that only Spark SQL can compute are written to files first (`sql_rows`). These are
expressions of a mapping, changes on top of a version, and deletion vectors.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ..apply.layout_batches import layout_batches
from ..apply.reading import read_changes
from ..apply.route import Route, Routes
from ..config.task import Task
from ..execution import BackgroundSession, Job
from ..lake import delta as lake
from ..lake import log
from ..lake.data_files import DataFiles, FileDataset
from ..lake.table import LakeTable
from ..model.change import PREFIX, Relation
from ..model.positions import ChangeNumber, ChangeRange
from ..model.quoting import quoted
from ..model.types import schema_of
from ..query.state import state_at
from ..state.baselines import Baseline
from ..state.totals import batches_after, last_stored
from ..targets.change_batch import ChangeBatch
from ..targets.lake.reshape import reshaped
from ..targets.plans import SPECIAL
from .comparable_targets import without_deleted
from .compare import TablePair
from .file_rows import FileRows
from .sessions import Sessions
from .sql_rows import write_query_rows
from .target_shape import TargetShape
from .target_versions import TargetVersion, deletion_mark, refuse_unmapped, row_filter, version_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class LoadedRows:
    """Rows in Parquet files.

    Attributes:
        layout: their layout.
        files: the paths.
        bad: the number of values per column that its lake type cannot hold; the files have NULL instead.
        count: the number of rows.
    """

    layout: Relation
    files: Sequence[str]
    bad: Mapping[str, int] = field(default_factory=dict)
    count: int = 0

    def rows(self) -> FileRows:
        """Returns the rows with the files' columns."""
        return FileRows.of(self.files, schema_of(self.layout.columns), self.count)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns the rows in Spark."""
        return read_files(spark, self.layout, list(self.files))


@dataclass(frozen=True)
class LoadedTarget:
    """Rows of a target without versions, and their change number."""

    landed: LoadedRows
    number: ChangeNumber


def read_files(spark: SparkSession, relation: Relation, files: list[str]) -> DataFrame:
    """Returns rows from Parquet files in Spark."""
    ddl = ", ".join(f"{quoted(c.name)} {c.type}" for c in relation.columns)
    if not files:
        return spark.createDataFrame([], ddl)
    return spark.read.schema(ddl).parquet(*files)


@dataclass(frozen=True)
class TargetSide:
    """A target's rows at a position (hex): those of `base`, with changes applied on top.

    Attributes:
        limit: the position.
        steps: the ranges of changes since, with their routes.
        stored: the approximate number of these changes.
        counts: upper bounds of the special cases among them.
        made: layouts and mapping of the target.
    """

    task: Task
    table: str
    base: TargetVersion | LoadedTarget
    limit: str
    steps: Sequence[tuple[ChangeBatch, Route]]
    stored: int
    counts: Mapping[str, int]
    made: TargetShape

    @staticmethod
    def at(
        task: Task, taken: Baseline, limit: str, held: LoadedTarget | None, sessions: Sessions
    ) -> TargetSide:
        """Returns the target's side at a position; `taken` is the table's baseline."""
        table = taken.table
        refuse_unmapped(task, taken)
        base = held or version_before(task, taken, limit)
        number = base.number
        last = last_stored(task.control_path("stored"))
        stored = batches_after(task.control_path("stored"), table, number)
        upto = max(number, last.upto if last else number)
        counts = {k: sum(b.tables.get(table, {}).get(k, 0) for b in stored) for k in SPECIAL}
        history = [
            one
            for one in log.history(task.relations_path).get(table, [])
            if one.from_position.hex().upper() < limit
        ]
        late = BackgroundSession(lambda: sessions.sql(f"the mapping of {table} has expressions"))
        routes = Routes.of(task, late.as_session, record=False)
        numbers, path = ChangeRange(None if number < 0 else number, upto), task.changes_path(table)
        batches = layout_batches(table, history, taken, numbers, path) if lake.exists(path) else []
        steps = routes.follow(table, batches, history, taken, numbers)[0]
        follows = routes.layouts(table, history, taken, numbers).at(upto) if history else routes.landed(taken)
        seen_last = [one.relation for one in history if one.from_position.hex().upper() >= taken.position]
        newest = seen_last[-1] if seen_last else taken.relation
        made = TargetShape(newest, follows.relation, routes.prepared(table, follows))
        rows = sum(b.tables.get(table, {}).get("rows", 0) for b in stored)
        return TargetSide(task, table, base, limit, steps, rows, counts, made)

    @property
    def why_sql(self) -> str | None:
        """Why only Spark SQL can compute the rows; None if the files are read directly."""
        if self.stored or any(r.before != r.relation for _, r in self.steps):
            return f"changes of {self.table} have to be applied on top of its target"
        if isinstance(self.base, TargetVersion) and (more := self._open.unread):
            return f"the target of {self.table} has {', '.join(more)}"
        return None

    @cached_property
    def _open(self) -> LakeTable:
        assert isinstance(self.base, TargetVersion)  # noqa: S101 - called only in that case
        return self.base.open()

    def rows(self, sessions: Sessions, scratch: str, kind: str = "validate") -> tuple[FileRows, bool]:
        """Returns the rows, and whether changes were applied on top of the base.

        Args:
            sessions: the Spark session.
            scratch: a folder for rows that Spark computes.
            kind: the kind of the jobs.
        """
        if (why := self.why_sql) is None:
            return self._files(scratch), False
        overlaid = False

        def computed(spark: SparkSession) -> DataFrame:
            nonlocal overlaid
            df, overlaid = self.frame(spark)
            return df

        job = Job(kind, f"{kind} {self.table}: rows of the target", self.stored, counts=False)
        return write_query_rows(sessions.sql(why), computed, scratch, job), overlaid

    def _files(self, scratch: str) -> FileRows:
        base, mark = self.base, deletion_mark(self.task, self.table)
        gone = {*self.made.kept, mark}
        if isinstance(base, LoadedTarget):
            found, own = base.landed.rows(), dict[str, str]()
        else:
            found, own = table_rows(self._open, scratch), dict(base.own)
        have = found.data.schema.names
        # The target may have columns that others added, or those of a later layout.
        mine = {c.name for c in self.made.relation.columns} - gone
        columns = {n: pc.field(n) for n in have if n in mine}
        return replace(found, columns=columns, only=row_filter(have, own, mark))

    def frame(self, spark: SparkSession) -> tuple[DataFrame, bool]:
        """Returns the rows in Spark, and whether changes were applied on top of the base."""
        from pyspark.sql import functions as F

        base = (
            self.base.rows(spark) if isinstance(self.base, TargetVersion) else self.base.landed.frame(spark)
        )
        base, overlaid = without_deleted(self.task, self.table, base), False
        for batch, route in self.steps:
            if route.before != route.relation:
                base, overlaid = reshaped(base, route.before, route.relation), True
            changes = read_changes(spark, batch)
            between = changes.df.where(F.col(PREFIX + "stream_position") < self.limit) if changes else None
            if changes is not None and between is not None and not between.isEmpty():
                seen, mine = route.through(changes.with_df(between), self.counts)
                base, overlaid = state_at(base, seen, route.relation, mine), True
        wanted = [c.name for c in self.made.relation.columns if c.name not in self.made.kept]
        return base.select(*[F.col(quoted(n)) for n in wanted if n in base.columns]), overlaid


@dataclass(frozen=True)
class TableSides:
    """Both sides of a table: the source's rows in its current layout, and its target."""

    source: LoadedRows
    target: TargetSide

    def pair(self, sessions: Sessions, scratch: str) -> TablePair:
        """Returns both sides for a comparison; `scratch` as in `TargetSide.rows`."""
        right, overlaid = self.target.rows(sessions, scratch)
        key = tuple(self.target.made.relation.key)
        return TablePair(self.target.table, key, self.left(sessions, scratch), right, overlaid)

    @property
    def as_null(self) -> int:
        """The number of source values that are compared as NULL, because their lake types cannot
        hold them."""
        seen = self.target.made.seen(self.source.layout)
        return sum(many for column, many in self.source.bad.items() if column in seen)

    def left(self, sessions: Sessions, scratch: str, kind: str = "validate") -> FileRows:
        """Returns the source's rows as the target should have them; `scratch` and `kind` as in
        `TargetSide.rows`."""
        made, table = self.target.made, self.target.table
        if made.mapping is None or made.projection is not None:
            return replace(self.source.rows(), columns=made.source_expressions(self.source.layout))
        job = Job(kind, f"{kind} {table}: mapped rows of the source", self.source.count, counts=False)
        spark = sessions.sql(f"{table} is mapped by expressions or criteria")
        return write_query_rows(spark, self.left_frame, scratch, job)

    def left_frame(self, spark: SparkSession) -> DataFrame:
        """Returns the source's rows as the target should have them, in Spark."""
        return self.target.made.source_frame(self.source.layout, self.source.frame(spark))


def table_rows(table: LakeTable, scratch: str) -> FileRows:
    """Returns the rows of a table in files. Files with other column names are copied to the folder
    `scratch`."""
    files, data = table.data_files(), table.dataset()
    rows = sum(file["num_records"] or 0 for file in files)
    if not isinstance(data, FileDataset):
        return FileRows(data, {}, rows=rows)
    copies = DataFiles(f"{scratch}/{uuid.uuid4().hex}")
    copied = [part for name in data.names for part in _copied(table, name, copies)]
    return FileRows.of([f"{copies.folder}/{part.path}" for part in copied], table.schema, rows)


def _copied(table: LakeTable, name: str, copies: DataFiles) -> list[lake.AddedFile]:
    part = copies.part(table.schema)
    with table.files.open(name) as file:
        for batch in table.files.batches(file, table.schema):
            part.write(batch)
    return part.close_all()
