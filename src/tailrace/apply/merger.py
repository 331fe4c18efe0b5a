"""Merges batches into a target: those of several tables in one job, or those of one table in sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import TailraceError, from_spark
from ..execution import Job, described
from ..model.change import ChangeTable
from ..model.positions import ChangeNumber, ChangeRange, order_key
from ..state.baselines import Baseline
from ..targets.base import Target
from ..targets.change_batch import ChangeBatch
from ..targets.images import explaining
from ..targets.merge_result import MergeResult
from ..targets.scratch import scratch
from ..targets.staged_changes import stage
from .apply_result import ApplyResult, summed
from .conflict_policy import in_window
from .mapping.mapped import counts_of
from .mapping.prepare import projection_of
from .route import Route
from .rules import RulesApplier
from .task_rules import TaskRules
from .transactions import by_transaction, middle_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[["SparkSession", ChangeBatch], ChangeTable | None]


@dataclass(frozen=True)
class Merger:
    """Merges batches into a target.

    A batch has the layout of the source; its route maps it to the layout of the target.

    Attributes:
        spark: the session.
        target: the target.
        rules: the rules of the tables, if there are any.
        read: reads the changes of a batch into a DataFrame; returns None if it has no changes.
    """

    spark: SparkSession
    target: Target
    rules: TaskRules | None
    read: Read

    # Batches of several tables in one job.

    def plain(self, batch: ChangeBatch, route: Route, baseline: Baseline | None) -> ChangeBatch | None:
        """Returns a batch that can be merged in one job with those of other tables.

        None if it needs `each`: Spark's SQL maps its changes, or it is applied one transaction at a time.
        """
        if self._by_sql(batch.table, route) or self._transactional(batch.table):
            return None
        mapped = self._mapped(batch, route)
        return None if mapped.ambiguous() else self._prepared(mapped, baseline)

    def run(self, batches: Sequence[ChangeBatch]) -> dict[str, ApplyResult | TailraceError]:
        """Merges prepared batches. Returns the result or the error of each table."""
        if not batches:
            return {}
        try:
            results = self.target.merge(batches)
        except Exception as error:  # noqa: BLE001 - each table gets its own error
            if len(batches) == 1:
                return {batches[0].table: from_spark(error, where=f"apply {batches[0].table}")}
            return {table: done for one in batches for table, done in self.run([one]).items()}
        return {one.table: self._finished(one, done) for one, done in zip(batches, results, strict=True)}

    # A batch of one table.

    def ambiguous(self, batch: ChangeBatch, route: Route) -> str | None:
        """Why the changes of an open window cannot be distinguished from its rows; None if they can."""
        counts = batch.counts
        for step in route.steps:
            counts = counts_of(counts, step)
        return replace(batch, relation=route.relation, counts=counts).ambiguous()

    def each(
        self, batch: ChangeBatch, route: Route, baseline: Baseline | None
    ) -> Iterator[tuple[ChangeRange, ApplyResult]]:
        """Applies a batch, as a whole or one transaction at a time, as its table's settings say. Yields the
        change numbers and the result of each commit.

        Raises:
            TailraceError: changes could not be applied.
        """
        with self._changes(batch, route) as mapped:
            if mapped is None:
                return
            for part in self._commits(mapped):
                done = self.run([self._prepared(part, baseline)])[batch.table]
                if isinstance(done, TailraceError):
                    raise done
                yield part.range, done
                if done.suspended is not None:
                    return

    @contextmanager
    def _changes(self, batch: ChangeBatch, route: Route) -> Iterator[ChangeBatch | None]:
        """A batch whose changes have the layout of the target; None if it has no changes.

        The changes are read from the change table. If Spark's SQL maps them, they are in files, which exist
        until the block ends.
        """
        if not self._by_sql(batch.table, route):
            yield self._mapped(batch, route)
            return
        with explaining(batch.table, f"apply {batch.table}"):
            changes = self.read(self.spark, batch)
            if changes is None:
                yield None
                return
            changes, _ = route.through(changes, batch.counts)
            mapped = self._mapped(batch, route)
            if (rules := self._rules_of(mapped)) is not None:
                changes = rules.judged(changes, route.relation)
            with scratch(batch.changes) as folder:
                job = Job(
                    "apply", f"apply {batch.table}: {batch.size:,} changes (map)", batch.size, counts=False
                )
                with described(self.spark, job):
                    staged = stage(changes, route.relation, folder, ordered=self.target.capabilities.ordered)
                yield replace(mapped, position="", projection=None, staged=staged, counts=staged.counts)

    def _commits(self, batch: ChangeBatch) -> Iterator[ChangeBatch]:
        """The parts of a batch, each of which is one commit: the whole batch, or its transactions. Changes
        that only the key log needs are one part."""
        if self.rules is None or not self._transactional(batch.table):
            yield batch
            return
        rest = batch.range
        if self.rules.logged(batch.table) is not None:
            rest = rest.later_than(min(order_key(self.target.progress(batch.table)), rest.end))
        if rest.lower > batch.range.lower:
            yield batch.between(batch.range.start, rest.lower)
        if not rest.is_empty:
            yield from by_transaction(batch.between(rest.start, rest.end), self._memory)

    def _finished(
        self, batch: ChangeBatch, merged: MergeResult | TailraceError | None
    ) -> ApplyResult | TailraceError:
        """Commits the key log of a batch, and merges the rest if the merge ended early."""
        if isinstance(merged, TailraceError):
            return in_window(batch.table, merged) if batch.open_window else merged
        try:
            done = self._in_parts(batch) if merged is None else self._logged(batch, merged)
            if self.rules is not None and done.end is not None:
                self.rules.applied(batch.table, ChangeNumber(done.end))
            if done.suspended is not None or done.end is None or done.end >= batch.range.end:
                return done
            rest = self._rest(batch, ChangeRange(done.end, batch.range.end))
            return rest if isinstance(rest, TailraceError) else summed([done, rest])
        except Exception as error:  # noqa: BLE001 - a policy raises it for one table; the others continue
            return from_spark(error, where=f"apply {batch.table}")

    def _logged(self, batch: ChangeBatch, merged: MergeResult) -> ApplyResult:
        if (rules := self._rules_of(batch)) is None:
            return ApplyResult(merged.end, outcome=merged.outcome)
        return rules.finished(batch, merged)

    def _in_parts(self, batch: ChangeBatch) -> ApplyResult:
        """Merges the first half of a batch that is too large for a database's memory."""
        done = self._rest(batch, batch.range.up_to(middle_of(batch.located())))
        if isinstance(done, TailraceError):
            raise done
        return done

    def _rest(self, batch: ChangeBatch, numbers: ChangeRange) -> ApplyResult | TailraceError:
        part = replace(batch.between(numbers.start, numbers.end), audit=None, layout=None)
        return self.run([self._prepared(part, None)])[batch.table]

    def _mapped(self, batch: ChangeBatch, route: Route) -> ChangeBatch:
        """A batch in the layout of the target."""
        projection, counts = projection_of(route.steps), batch.counts
        if projection is not None or not route.steps:
            for step in route.steps:
                counts = counts_of(counts, step)
        mapped = replace(
            batch,
            relation=route.relation,
            before=route.before,
            target=self.target.path(batch.table),
            counts=counts,
            projection=projection,
        )
        archives = self.rules is not None and self.rules.archives(batch.table)
        return replace(
            mapped, appends=archives or not (route.relation.key or mapped.may_contain("U", "D", "T"))
        )

    def _by_sql(self, table: str, route: Route) -> bool:
        """Whether Spark's SQL maps the changes, or checks them against the constraints of the target."""
        if route.steps and projection_of(route.steps) is None:
            return True
        return self.rules is not None and bool(self.target.constraints(table))

    def _transactional(self, table: str) -> bool:
        """Whether each transaction of the source is a commit of the table's target."""
        return self.rules is not None and self.rules.transactional(table)

    @property
    def _memory(self) -> int | None:
        return self.target.capabilities.memory_bytes

    def _prepared(self, batch: ChangeBatch, baseline: Baseline | None) -> ChangeBatch:
        rules = self._rules_of(batch)
        return rules.prepared(batch, baseline.number if baseline else 0) if rules else batch

    def _rules_of(self, batch: ChangeBatch) -> RulesApplier | None:
        if self.rules is None:
            return None
        return self.rules.of(batch.table, batch.relation, window=batch.open_window, logged=batch.logged)
