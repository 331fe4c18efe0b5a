"""Applies the changes of single tables: cuts them at new layouts, maps and merges them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import TailraceError, from_spark
from ..lake.failpoints import reach
from ..model.positions import ChangeRange, order_key
from ..state.baselines import Baseline
from ..state.ledger import AppliedTable, Stored
from ..targets.base import Target, missing_baseline
from ..targets.change_batch import ChangeBatch
from ..targets.merge_result import ApplyOutcome
from .apply_result import ApplyResult, applied
from .layout_batches import layout_batches
from .merger import Merger
from .reading import ApplyPaths
from .route import DdlStop, Route, Routes
from .scheduler import Scheduler
from .table_progress import TableHistory, TableProgress
from .task_rules import TaskRules


@dataclass(frozen=True)
class TableApplier:
    """Applies the changes of single tables. Different threads may apply different tables at the same time.

    Attributes:
        target, paths: of the task.
        rules, routes: of the task; None without rules and mappings.
        scheduler: decides what happens to a table whose changes cannot be applied.
        history: layouts and baselines of the tables.
        progress: how far the tables are applied.
        merger: merges batches.
    """

    target: Target
    paths: ApplyPaths
    rules: TaskRules | None
    routes: Routes | None
    scheduler: Scheduler
    history: TableHistory
    progress: TableProgress
    merger: Merger
    _suspending: threading.Lock = field(default_factory=threading.Lock)

    def apply(
        self, table: str, last: Stored, counts: Mapping[str, int], done: list[AppliedTable]
    ) -> TailraceError | None:
        """Applies the changes of a table up to the end of the store batch `last`. Returns the error, or None.

        Args:
            table: the table.
            last: the store batch.
            counts: upper bounds of the number of changes of each kind.
            done: gets a row for each commit, also if a later one fails.
        """
        try:
            self._apply(table, last, counts, done)
        except Exception as error:  # noqa: BLE001 - the caller asks the scheduler what to do
            self.progress.forget([table])
            return self.explained(table, error)
        return None

    def plain_batch(self, table: str, end: int, counts: Mapping[str, int]) -> ChangeBatch | None:
        """Returns the changes of a table up to a change number as one batch, to be merged in one job with
        those of other tables; None if they need more than one merge (see `apply`)."""
        batches, stop = self._batches(table, end, counts)
        if stop is not None or len(batches) != 1:
            return None
        ((batch, route),) = batches
        exists = self.progress.of(table) is not None or self.target.exists(table)
        if route.relation != route.before or not exists:
            return None
        return self.merger.plain(batch, route, self.history.baselines.get(table))

    def explained(self, table: str, error: Exception) -> TailraceError:
        """Returns the error of a table as one of tailrace's own."""
        where = f"apply {table}"
        known = self.routes.value_error(table, error, where=where) if self.routes else None
        return known or from_spark(error, where=where)

    def applied_before(self, table: str, number: int) -> AppliedTable | None:
        """Returns the row to record for a target whose progress is exactly that number, from changes that
        were applied earlier; otherwise None."""
        baseline = self.history.baselines.get(table)
        if (baseline and number <= baseline.after) or self.target.progress(table) != number:
            return None
        return self._nothing(table, number)

    def _apply(self, table: str, last: Stored, counts: Mapping[str, int], done: list[AppliedTable]) -> None:
        batches, stop = self._batches(table, last.upto, counts)
        self.progress.forget([table])
        for batch, route in batches:
            if not self._apply_batch(batch, route, done):
                return
        if stop is not None and self.routes is not None:
            self.routes.stop_before(stop)
            return
        # The end of the range may have no changes to apply, as the baseline or its window had them.
        if not done or order_key(done[-1].upto) < last.upto:
            done.append(self._nothing(table, last.upto))
        self.progress.advance(table, last.upto)

    def _batches(
        self, table: str, end: int, counts: Mapping[str, int]
    ) -> tuple[Sequence[tuple[ChangeBatch, Route]], DdlStop | None]:
        """Returns the batches of a table's changes up to a change number, each with its route to the target,
        and the DDL before which apply ends."""
        history, baseline = self.history.layouts[table], self.history.baselines.get(table)
        progress = self.progress.of(table)
        logged = self.rules.logged(table) if self.rules else None
        numbers = ChangeRange(progress, end)
        found = layout_batches(table, history, baseline, numbers, self.paths.changes(table), logged)
        batches = [replace(one, counts=counts) for one in found]
        if self.routes is None:
            return [(one, Route(one.before or one.relation, one.relation)) for one in batches], None
        return self.routes.follow(table, batches, history, baseline, numbers)

    def _apply_batch(self, batch: ChangeBatch, route: Route, done: list[AppliedTable]) -> bool:
        """Applies a batch. Returns False if it suspended the table."""
        table, baseline = batch.table, self.history.baselines.get(batch.table)
        self._alter(batch, route, baseline)
        if batch.range.is_empty:
            return True
        if why := self.merger.ambiguous(batch, route):
            with self._suspending:
                self.scheduler.ambiguous(table, why)
            return False
        for numbers, result in self.merger.each(batch, route, baseline):
            done.append(applied(table, result, numbers))
            if result.suspended is not None:
                return False
        return True

    def _alter(self, batch: ChangeBatch, route: Route, baseline: Baseline | None) -> None:
        """Gives the target the layout of a batch, unless only the key log needs its changes.

        Raises:
            BaselineNeededError: the target and its baseline were removed since its progress was read.
        """
        table, rules = batch.table, self.rules
        logged = rules is not None and rules.logged(table) is not None
        if logged and order_key(self.target.progress(table)) >= batch.range.end:
            return
        exists = self.target.exists(table)
        if baseline and not exists:
            raise missing_baseline(table)
        applier = None
        if rules is not None:
            applier = rules.of(table, route.relation, window=batch.open_window, logged=batch.logged)
        adds_columns = applier is not None and applier.adds_columns
        if adds_columns or route.relation != route.before or not exists:
            reach("apply.layout")
            (applier or self.target).alter(table, route.before, route.relation)

    def _nothing(self, table: str, end: int) -> AppliedTable:
        """Returns the row to record if there are no changes to apply up to a change number."""
        progress = self.target.progress(table)
        version = None if progress is None else self.target.version_at(table, progress)
        outcome = ApplyOutcome(version=version)
        return applied(table, ApplyResult(end, outcome=outcome), ChangeRange(end, end))
