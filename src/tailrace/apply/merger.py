"""The merges of a task's batches: of several tables in one job, or of one table after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import TailraceError, from_spark
from ..execution import Job, described
from ..model.change import ChangeTable
from ..state.baselines import Baseline
from ..targets.audit import Audited
from ..targets.base import Target
from ..targets.capabilities import Shares
from ..targets.change_batch import TaskBatch
from ..targets.images import explaining
from ..targets.projection import Projection
from ..targets.scratch import scratch
from ..targets.staged_changes import stage
from .apply_result import ApplyResult, summed
from .conflict_policy import in_window
from .mapping.mapped import counts_of
from .reading import ApplyPaths
from .route import Route
from .rules_apply import RulesApply
from .segment import Segment
from .task_rules import TaskRules
from .transactions import by_transaction, middle_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[["SparkSession", str, Segment], ChangeTable | None]


@dataclass(frozen=True)
class TaskBatches:
    """Merges batches into a target. `read` gives a segment of the change table at a path, for Spark's SQL."""

    spark: SparkSession
    target: Target
    paths: ApplyPaths
    rules: TaskRules | None
    read: Read

    def of(
        self, table: str, segment: Segment, route: Route, counts: Mapping[str, int], baseline: Baseline | None
    ) -> TaskBatch | None:
        """The batch of a stretch of a table's changes, whose layout the target has, to be merged in one job
        with those of other tables; None: Spark's SQL maps its changes, or it is applied transaction by
        transaction (`each`)."""
        if self._by_sql(table, route) or self.transactional(table) or self.unclear(segment, route, counts):
            return None
        return self._prepared(self._batch(table, segment, route, counts), baseline)

    def _by_sql(self, table: str, route: Route) -> bool:
        """Whether Spark's SQL maps the changes, or judges what the target demands of them."""
        if route.steps and Projection.of(route.steps) is None:
            return True
        return self.rules is not None and bool(self.target.demands(table))

    @staticmethod
    def unclear(segment: Segment, route: Route, counts: Mapping[str, int]) -> str | None:
        """Why the changes of an open window cannot be told from the rows that were read in it; None: they
        can."""
        for step in route.steps:
            counts = counts_of(counts, step)
        return replace(segment, relation=route.relation).unclear(counts)

    def each(
        self, table: str, segment: Segment, route: Route, counts: Mapping[str, int], baseline: Baseline | None
    ) -> Iterator[tuple[TaskBatch, ApplyResult]]:
        """Applies a stretch of a table's changes, at once or transaction by transaction, as its table is
        applied; gives the batches, and what was done with each.

        Raises:
            TailraceError: changes could not be applied.
        """
        with self._located(table, segment, route, counts) as one:
            if one is None:
                return
            for part in self._commits(one):
                made = self.run([self._prepared(part, baseline)])[table]
                if isinstance(made, TailraceError):
                    raise made
                yield part, made
                if made.suspended is not None:
                    return

    def _commits(self, one: TaskBatch) -> Iterator[TaskBatch]:
        """The batches of which each is a commit: transactions, if the table is applied by them. Changes that
        the key log alone lacks are one."""
        after = one.after
        if self.rules is None or not self.transactional(one.table):
            yield one
            return
        if self.rules.logged(one.table) is not None:
            after = max(after, min(self.target.progress(one.table), one.upto))
        if after > one.after:
            yield one.between(one.after, after)
        if after < one.upto:
            yield from by_transaction(one.between(after, one.upto), self.memory)

    @property
    def memory(self) -> int | None:
        """Bytes that waiting changes may take in memory; None: no limit."""
        return self.target.capabilities.memory_bytes

    def transactional(self, table: str) -> bool:
        """Whether each transaction of the source is a commit of the table's target."""
        return self.rules is not None and self.rules.transactional(table)

    def run(self, todo: Sequence[TaskBatch]) -> dict[str, ApplyResult | TailraceError]:
        """Merges prepared batches; gives of each table what was done, or its error."""
        if not todo:
            return {}
        try:
            together = self._shares.merge_many(todo)
        except Exception as error:  # noqa: BLE001 - each gets its own error
            if len(todo) == 1:
                return {todo[0].table: from_spark(error, where=f"apply {todo[0].table}")}
            return {table: made for one in todo for table, made in self.run([one]).items()}
        return {one.table: self._finished(one, made) for one, made in zip(todo, together, strict=True)}

    def _finished(self, one: TaskBatch, made: Audited | TailraceError | None) -> ApplyResult | TailraceError:
        """Returns the result of a batch, its key log committed; merges the rest if the merge ended early."""
        if isinstance(made, TailraceError):
            return in_window(one.table, made) if one.tolerant else made
        try:
            done = self._in_parts(one) if made is None else self._recorded(one, made)
            if self.rules is not None:
                self.rules.applied(one.table, done.upto)
            if done.suspended is not None or not 0 <= done.upto < one.upto:
                return done
            rest = self._rest(one, done.upto, one.upto)
            return rest if isinstance(rest, TailraceError) else summed([done, rest])
        except Exception as error:  # noqa: BLE001 - a policy raises it for one table; the others continue
            return from_spark(error, where=f"apply {one.table}")

    def _recorded(self, one: TaskBatch, made: Audited) -> ApplyResult:
        if (applier := self._applier(one)) is None:
            return ApplyResult(made.upto, outcome=made.outcome)
        return applier.finished(one, made)

    def _in_parts(self, one: TaskBatch) -> ApplyResult:
        """Merges a batch that is too large for a database's memory in two parts, cut between transactions."""
        done = self._rest(one, one.after, middle_of(one.located()))
        if isinstance(done, TailraceError):
            raise done
        return done

    def _rest(self, one: TaskBatch, after: int, upto: int) -> ApplyResult | TailraceError:
        some = replace(one.between(after, upto), audit=None, layout=None)
        return self.run([self._prepared(some, None)])[one.table]

    @contextmanager
    def _located(
        self, table: str, segment: Segment, route: Route, counts: Mapping[str, int]
    ) -> Iterator[TaskBatch | None]:
        """The batch of a stretch: its changes are in the change table, or Spark's SQL maps them, and they are
        in files until the block ends. None: there are no changes."""
        if not self._by_sql(table, route):
            yield self._batch(table, segment, route, counts)
            return
        path = self.paths.changes(table)
        many = sum(counts.get(kind, 0) for kind in "IUD")
        with explaining(table, f"apply {table}"):
            changes = self.read(self.spark, path, segment)
            if changes is None:
                yield None
                return
            changes, counts = route.through(changes, counts)
            one = self._batch(table, segment, route, counts)
            if (applier := self._applier(one)) is not None:
                changes = applier.judged(changes, route.relation)
            with scratch(path) as folder:
                with described(
                    self.spark, Job("apply", f"apply {table}: {many:,} changes (map)", many, counts=False)
                ):
                    staged = stage(changes, route.relation, folder, ordered=self.target.capabilities.ordered)
                yield replace(one, position="", projection=None, staged=staged, counts=staged.counts)

    def _batch(self, table: str, segment: Segment, route: Route, counts: Mapping[str, int]) -> TaskBatch:
        projection = Projection.of(route.steps)
        if projection is not None or not route.steps:
            for step in route.steps:
                counts = counts_of(counts, step)
        archives = self.rules is not None and self.rules.archives(table)
        looks = bool(route.relation.key) or any(counts.get(k) for k in "UDT")
        return TaskBatch(
            table,
            self.paths.changes(table),
            self._shares.path(table),
            route.relation,
            segment.after,
            segment.upto,
            segment.position,
            adds=archives or not looks,
            tolerant=segment.tolerant,
            logged=segment.logged,
            counts=counts,
            projection=projection,
        )

    @property
    def _shares(self) -> Shares:
        assert self.target.capabilities.shares is not None  # noqa: S101 - of every target
        return self.target.capabilities.shares

    def _prepared(self, one: TaskBatch, baseline: Baseline | None) -> TaskBatch:
        applier = self._applier(one)
        return applier.prepared(one, baseline.number if baseline else 0) if applier else one

    def _applier(self, one: TaskBatch) -> RulesApply | None:
        if self.rules is None:
            return None
        return self.rules.of(one.table, one.relation, window=one.tolerant, logged=one.logged)
