"""The two sides of a validated table: the source's rows in a snapshot, the target's rows at its position.

Where the target has a version with nothing to be laid over it, and the files are small, this process reads
both; else Spark does. What is compared, and how, is the same (`compare`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..apply.one_route import Route
from ..apply.plan import SPECIAL
from ..apply.reading import read_changes
from ..apply.route import Routes
from ..apply.segment import Segment, segments
from ..apply.targets.delta.reshape import reshaped
from ..config.task import Task
from ..execution import BackgroundSession
from ..lake import delta as lake
from ..lake import log
from ..lake.past import at_version
from ..model.change import PREFIX, Relation
from ..model.quoting import quoted
from ..model.types import schema_of
from ..query.state import state_at
from ..state.ledger import Baseline
from ..state.totals import batches_after, last_stored
from .compare import FileRows, Files, Sides
from .compare_spark import Frames
from .mapped import Made
from .rules import living
from .versions import Version, mark_of, own_and_living, refuse_waiting, version_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Sessions = Callable[[str], "SparkSession"]
"""Returns the Spark session, which is started at the first call; the text says what it is needed for."""


@dataclass(frozen=True)
class Landed:
    """Rows in parquet files, and their layout. `bad`: column -> how many of its values its lake type cannot
    hold: the files have NULL in their place."""

    layout: Relation
    files: Sequence[str]
    bad: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Their size in bytes."""
        return sum(map(os.path.getsize, self.files))

    def data(self) -> ds.Dataset:
        """The rows, for this process."""
        schema = schema_of(self.layout.columns)
        return ds.dataset(list(self.files), schema) if self.files else ds.dataset(schema.empty_table())

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows, for Spark."""
        return rows_of_files(spark, self.layout, list(self.files))


@dataclass(frozen=True)
class Held:
    """Rows of a target without versions, and the change number they have reached."""

    landed: Landed
    number: int


def rows_of_files(spark: SparkSession, relation: Relation, files: list[str]) -> DataFrame:
    """The rows that `readers` left in parquet files."""
    ddl = ", ".join(f"{quoted(c.name)} {c.type}" for c in relation.columns)
    if not files:
        return spark.createDataFrame([], ddl)
    return spark.read.schema(ddl).parquet(*files)


@dataclass(frozen=True)
class TargetSide:
    """A target's rows at a position (hex): those of `base`, with changes applied on top.

    Attributes:
        limit: the position.
        steps: the stretches of changes since, with their routes.
        stored: about how many rows they are.
        counts: upper bounds of what occurs in them.
        made: what it makes of its source.
    """

    task: Task
    table: str
    base: Version | Held
    limit: str
    steps: Sequence[tuple[Segment, Route]]
    stored: int
    counts: Mapping[str, int]
    made: Made

    @staticmethod
    def at(task: Task, taken: Baseline, limit: str, held: Held | None, sessions: Sessions) -> TargetSide:
        """What there is of a table's target at a position; `taken`: the table's baseline."""
        table = taken.table
        refuse_waiting(task, taken)
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
        late = BackgroundSession(lambda: sessions(f"the mapping of {table} has expressions"))
        routes = Routes.of(task, late.as_session, record=False)
        spans = segments(history, taken, number, upto) if lake.exists(task.changes_path(table)) else []
        steps = routes.follow(table, spans, history, taken, number)[0]
        follows = (
            routes.layouts(table, history, taken, number, upto).at(upto) if history else routes.landed(taken)
        )
        seen_last = [one.relation for one in history if one.from_position.hex().upper() >= taken.position]
        newest = seen_last[-1] if seen_last else taken.relation
        made = Made(newest, follows.relation, routes.prepared(table, follows))
        rows = sum(b.tables.get(table, {}).get("rows", 0) for b in stored)
        return TargetSide(task, table, base, limit, steps, rows, counts, made)

    def needs_spark(self, size: int) -> str | None:
        """Why this process cannot read it; `size`: bytes of the source's side."""
        if self.made.mapping is not None and self.made.projection is None:
            return f"{self.table} is mapped by expressions or criteria"
        if self.stored or any(r.before != r.relation for _, r in self.steps):
            return f"changes of {self.table} have to be applied on top of its target"
        if isinstance(self.base, Version):
            if more := lake.unread(self._delta):
                return f"the target of {self.table} has {', '.join(more)}"
            size += sum(pa.table(self._delta.get_add_actions(flatten=True))["size_bytes"].to_pylist())
        else:
            size += self.base.landed.size
        if size > self.task.validation.local_limit:
            return f"{self.table} is larger than `validation.local_limit`"
        return None

    @cached_property
    def _delta(self) -> DeltaTable:
        assert isinstance(self.base, Version)  # noqa: S101 - called only in that case
        return at_version(self.base.path, self.base.version)

    def here(self) -> FileRows:
        """The rows, for this process."""
        base = self.base
        data = lake.dataset(self._delta) if isinstance(base, Version) else base.landed.data()
        mark = mark_of(self.task, self.table)
        gone = {*self.made.kept, mark}
        names = {n: pc.field(n) for n in data.schema.names if n not in gone}
        own = base.own if isinstance(base, Version) else {}
        return FileRows(data, names, own_and_living(data.schema.names, own, mark))

    def frame(self, spark: SparkSession) -> tuple[DataFrame, bool]:
        """The rows, for Spark; and whether changes were applied on top of the base."""
        from pyspark.sql import functions as F

        base = self.base.rows(spark) if isinstance(self.base, Version) else self.base.landed.rows(spark)
        base, overlaid = living(self.task, self.table, base), False
        for span, route in self.steps:
            if route.before != route.relation:
                base, overlaid = reshaped(base, route.before, route.relation), True
            changes = read_changes(spark, self.task.changes_path(self.table), span)
            between = changes.df.where(F.col(PREFIX + "stream_position") < self.limit) if changes else None
            if changes is not None and between is not None and not between.isEmpty():
                seen, mine = route.through(changes.with_df(between), self.counts)
                base, overlaid = state_at(base, seen, route.relation, mine), True
        return base.drop(*self.made.kept), overlaid


@dataclass(frozen=True)
class Both:
    """The sides of a table: the source's rows in its current layout, and its target."""

    source: Landed
    target: TargetSide

    def sides(self, sessions: Sessions) -> tuple[Sides, bool]:
        """Both as they are compared; and whether changes were applied on top of the target's."""
        why = self.target.needs_spark(self.source.size)
        if why is None:
            return Files(self.left_here(), self.target.here()), False
        right, overlaid = self.target.frame(sessions(why))
        return Frames(self.left(sessions(why)), right), overlaid

    @property
    def as_null(self) -> int:
        """How many values of the source are compared as NULL, because their lake types cannot hold them."""
        seen = self.target.made.seen(self.source.layout)
        return sum(many for column, many in self.source.bad.items() if column in seen)

    def left(self, spark: SparkSession) -> DataFrame:
        """The source's rows as the target should have them."""
        return self.target.made.left(self.source.layout, self.source.rows(spark))

    def left_here(self) -> FileRows:
        """The same, for this process."""
        return FileRows(self.source.data(), self.target.made.left_here(self.source.layout))
