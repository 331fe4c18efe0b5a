"""One table's changes from where it stands up to the end of a slice: cut by layouts, routed, applied."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import TailraceError, from_spark
from ..lake.failpoints import reach
from ..state.baselines import Baseline
from ..state.ledger import AppliedTable, Stored
from ..targets.base import Target, gone
from ..targets.merge_result import ApplyOutcome
from ..targets.plans import TableBatch
from .apply_result import ApplyResult, applied
from .merger import TaskBatches
from .route import Halt, Route, Routes
from .scheduler import Gate
from .segment import Segment, segments
from .table_progress import Reach, TableHistory
from .task_rules import TaskRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_plain(routes: Sequence[tuple[Segment, Route]]) -> bool:
    """Whether a table's changes are one stretch, of the layout that its target has."""
    return len(routes) == 1 and routes[0][1].relation == routes[0][1].before


@dataclass(frozen=True)
class Stretch:
    """Changes of a table with one layout and one route; `counts`: upper bounds of what occurs in them,
    `done`: gets what was committed."""

    table: str
    segment: Segment
    route: Route
    counts: Mapping[str, int]
    done: list[AppliedTable]


@dataclass(frozen=True)
class TableApply:
    """Applies single tables; different ones from different threads at once."""

    spark: SparkSession
    target: Target
    rules: TaskRules | None
    routes: Routes | None
    gate: Gate
    known: TableHistory
    reach: Reach
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
        return applied(table, ApplyResult(upto, outcome=outcome), upto, upto)

    def _apply(self, table: str, last: Stored, counts: Mapping[str, int], done: list[AppliedTable]) -> None:
        baseline = self.known.baselines.get(table)
        routes, halt = self.routed(table, last.upto)
        self.reach.forget([table])
        for one, route in routes:
            if not self._through(Stretch(table, one, route, counts, done), baseline):
                return
        if halt is not None and self.routes is not None:
            self.routes.carry_out(halt)
            return
        # The rest may have no changes: the baseline had all of them, or they ended with its window.
        if not done or done[-1].upto < last.upto:
            done.append(self._nothing(table, last.upto))
        self.reach.came(table, last)

    def _through(self, stretch: Stretch, baseline: Baseline | None) -> bool:
        """Applies a stretch; False: the table takes no more changes."""
        table, one, route = stretch.table, stretch.segment, stretch.route
        self._alter(table, one, route, baseline)
        if one.after >= one.upto:
            return True
        if (why := self.task_batches.unclear(one, route, stretch.counts)) and self._unclear(table, why):
            return False
        for batch, made in self.task_batches.each(table, one, route, stretch.counts, baseline):
            stretch.done.append(applied(table, made, batch.after, batch.upto))
            if made.suspended is not None:
                return False
        return True

    def _alter(self, table: str, one: Segment, route: Route, baseline: Baseline | None) -> None:
        """Gives the target the layout of a stretch, unless the key log alone lacks its changes.

        Raises:
            BaselineNeededError: it has gone with its baseline since its progress was read.
        """
        rules = self.rules
        if rules and rules.logged(table) is not None and self.target.progress(table) >= one.upto:
            return
        there = self.target.exists(table)
        if baseline and not there:
            raise gone(table)
        applier = rules.of(table, route.relation, window=one.tolerant, logged=one.logged) if rules else None
        adds = applier is not None and applier.adds_columns
        if adds or route.relation != route.before or not there:
            reach("apply.layout")
            (applier or self.target).alter(table, route.before, route.relation)

    def _unclear(self, table: str, why: str) -> bool:
        with self._telling:
            return self.gate.unclear(table, why)
