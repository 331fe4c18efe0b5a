"""One table's changes from where it stands up to the end of a slice: cut by layouts, routed, applied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import TailraceError, from_spark
from ..execution import Job, described
from ..model.change import ChangeTable
from ..state.baselines import Baseline
from ..state.ledger import AppliedTable, Stored
from .apply_result import ApplyResult
from .gate import Gate
from .known import TableHistory
from .one_route import Route
from .plan import TableBatch
from .reach import Reach
from .reading import ApplyPaths
from .route import Halt, Routes
from .segment import Segment, segments
from .segment_apply import SegmentApply, applied, standing
from .targets.base import Target
from .targets.outcome import ApplyOutcome
from .task_batches import TaskBatches
from .task_rules import TaskRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[["SparkSession", str, Segment], ChangeTable | None]


def is_plain(routes: Sequence[tuple[Segment, Route]]) -> bool:
    """Whether a table's changes are one stretch, of the layout that its target has."""
    return len(routes) == 1 and routes[0][1].relation == routes[0][1].before


@dataclass(frozen=True)
class Stretch:
    """Changes of a table with one layout and one route; `counts`: upper bounds of what occurs in them,
    `done`: gets what was committed, `ends`: the change number at which the slice ends."""

    table: str
    segment: Segment
    route: Route
    counts: Mapping[str, int]
    done: list[AppliedTable]
    ends: int


@dataclass(frozen=True)
class TableApply:
    """Applies single tables; different ones from different threads at once.

    `read` gives a segment of the change table at a path; `task_batches`: what one task can do.
    """

    spark: SparkSession
    paths: ApplyPaths
    target: Target
    rules: TaskRules | None
    routes: Routes | None
    gate: Gate
    known: TableHistory
    reach: Reach
    read: Read
    task_batches: TaskBatches
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def apply(
        self, table: str, last: Stored, counts: Mapping[str, int], done: list[AppliedTable]
    ) -> TailraceError | None:
        """Applies what a table lacks up to the end of the batch `last`; gives what it died of, if it did.

        Args:
            counts: upper bounds of what occurs in (the number the table has reached, `last.upto`].
            done: gets what was committed, also when the rest could not be applied.
        """
        try:
            self._apply(table, last, counts, done)
        except Exception as error:  # noqa: BLE001 - the caller asks the gate what to do
            self.reach.forget([table])
            return self.explained(table, error)
        return None

    def explained(self, table: str, error: Exception) -> TailraceError:
        """What a table died of, as an error of ours."""
        where = f"apply {table}"
        known = self.routes.value_error(table, error, where=where) if self.routes else None
        return known or from_spark(error, where=where)

    def routed(self, table: str, upto: int) -> tuple[list[tuple[Segment, Route]], Halt | None]:
        """The stretches of a table's changes up to a change number, each with its route to the target."""
        history, baseline = self.known.history[table], self.known.baselines.get(table)
        reached = self.reach.of(table)
        logged = self.rules.logged(table) if self.rules else None
        spans = segments(history, baseline, reached, upto, -1 if logged is None else logged)
        if self.routes is None:
            return [(one, Route(one.before, one.relation)) for one in spans], None
        return self.routes.follow(table, spans, history, baseline, reached)

    def there(self, table: str, reached: int) -> AppliedTable | None:
        """What is to be recorded of changes that a target has; None: it has not all of them."""
        baseline = self.known.baselines.get(table)
        if (baseline and reached <= baseline.after) or self.target.progress(table) != reached:
            return None
        return self._nothing(table, reached)

    def _nothing(self, table: str, upto: int) -> AppliedTable:
        """What is to be recorded where nothing is left to do up to a change number."""
        reached = self.target.progress(table)
        layout, based = self.known.history[table][-1].relation, table in self.known.baselines
        batch = TableBatch.there(table, layout, reached, based=based)
        outcome = self.target.apply(batch) if reached >= 0 else ApplyOutcome()
        return applied(table, ApplyResult(upto, outcome=outcome))

    def _apply(self, table: str, last: Stored, counts: Mapping[str, int], done: list[AppliedTable]) -> None:
        baseline = self.known.baselines.get(table)
        routes, halt = self.routed(table, last.upto)
        whole = len(routes) == 1 and halt is None and not routes[0][1].steps
        exact = whole and self.reach.counted(table, baseline)
        plain = halt is None and is_plain(routes)  # a task was asked before
        self.reach.forget([table])
        for one, route in routes:
            stretch = Stretch(table, one, route, counts, done, last.upto)
            if not self._through(stretch, exact, baseline, by_task=not plain):
                return
        if halt is not None and self.routes is not None:
            self.routes.carry_out(halt)
            return
        # The rest may have no changes: the baseline had all of them, or they ended with its window.
        if not done or done[-1].upto < last.upto:
            done.append(self._nothing(table, last.upto))
        self.reach.came(table, last, baseline)

    def _through(self, stretch: Stretch, exact: bool, baseline: Baseline | None, *, by_task: bool) -> bool:
        """Applies a stretch, by single tasks as far as they can do it (`by_task`: none was asked yet); False:
        the table takes no more changes."""
        table, one, route = stretch.table, stretch.segment, stretch.route
        to = replace(one, before=route.before, relation=route.relation)
        way = SegmentApply(self.target, self.rules, table, to, exact, baseline.number if baseline else 0)
        way.alter()
        after = one.after
        if self.task_batches.transactional(table):
            by_task = True
            if (there := way.unlogged) > after:
                if not self._by_jobs(way, stretch, replace(one, upto=there)):
                    return False
                after = there
        rest = replace(one, after=after)
        if by_task and after < one.upto:
            for upto, task in self.task_batches.each(table, rest, route, stretch.counts, baseline):
                stretch.done.append(standing(applied(table, task), after, upto))
                if task.suspended is not None:
                    return False
                after = upto
        return self._by_jobs(way, stretch, replace(one, after=after))

    def _by_jobs(self, way: SegmentApply, stretch: Stretch, one: Segment) -> bool:
        """Applies a part of a stretch by Spark's jobs; False: the table takes no more changes."""
        if one.after >= one.upto:
            return True
        changes = self.read(self.spark, self.paths.changes(stretch.table), one)
        if changes is None:
            return True
        changes, counts = stretch.route.through(changes, stretch.counts)
        way.segment = replace(way.segment, after=one.after, upto=one.upto)
        if (why := way.segment.unclear(counts)) and self._unclear(stretch.table, why):
            return False
        many = sum(counts.get(kind, 0) for kind in "IUD")
        with described(self.spark, Job("apply", f"apply {stretch.table}: {many:,} changes", many)):
            for made in way.apply(changes, counts):
                stretch.done.append(standing(made, one.after, stretch.ends))
        return way.suspended is None

    def _unclear(self, table: str, why: str) -> bool:
        with self._telling:
            return self.gate.unclear(table, why)
