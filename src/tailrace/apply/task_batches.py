"""Batches that one task reads and merges by itself: which tables have one, and what was done with each."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import TailraceError, from_spark
from ..state.baselines import Baseline
from .apply_result import ApplyResult
from .mapping.mapped import counts_of
from .mapping.projection import Projection
from .one_route import Route
from .reading import ApplyPaths
from .rules_apply import RulesApply
from .segment import Segment
from .targets.base import Target
from .targets.delta.many import ROWS
from .targets.task_batch import TaskBatch
from .task_rules import TaskRules
from .transactions import by_transaction
from .window import in_window

logger = logging.getLogger("tailrace.apply")


@dataclass(frozen=True)
class TaskBatches:
    """Applies them to a target."""

    target: Target
    paths: ApplyPaths
    rules: TaskRules | None

    def may(self, table: str, counts: Mapping[str, int]) -> bool:
        """Whether a table's batch may be one: not too many changes, a target that takes such batches."""
        return self.target.capabilities.shares is not None and sum(counts.get(k, 0) for k in "IUD") <= ROWS

    def of(
        self,
        table: str,
        segment: Segment,
        route: Route,
        counts: Mapping[str, int],
        baseline: Baseline | None,
    ) -> TaskBatch | None:
        """The batch of a stretch of a table's changes, whose layout the target has; None: it has a mapping
        with expressions or criteria, or an open window that tells too little, or is applied transaction by
        transaction (`each`), or by rules that need more than one task."""
        if self.transactional(table) or (one := self._batch(table, segment, route, counts)) is None:
            return None
        return self._prepared(one, baseline)

    def each(
        self,
        table: str,
        segment: Segment,
        route: Route,
        counts: Mapping[str, int],
        baseline: Baseline | None,
    ) -> Iterator[tuple[int, ApplyResult]]:
        """Applies such a stretch, at once or transaction by transaction, as its table is applied: gives up to
        which change number, and what was done. What is left needs a job of its own.

        Raises:
            TailraceError: changes could not be applied.
        """
        if not self.may(table, counts) or (one := self._batch(table, segment, route, counts)) is None:
            return
        memory = self.target.capabilities.memory_bytes
        for part in by_transaction(one, memory) if self.transactional(table) else [one]:
            ready = self._prepared(part, baseline)
            made = self.run([ready]).get(table) if ready is not None else None
            if isinstance(made, TailraceError):
                raise made
            if made is None:
                return
            yield part.upto, made

    def transactional(self, table: str) -> bool:
        """Whether each transaction of the source is a commit of the table's target."""
        return self.rules is not None and self.rules.transactional(table)

    def _batch(
        self, table: str, segment: Segment, route: Route, counts: Mapping[str, int]
    ) -> TaskBatch | None:
        shares, projection = self.target.capabilities.shares, Projection.of(route.steps)
        if shares is None or (route.steps and projection is None):
            return None
        to = replace(segment, before=route.before, relation=route.relation)
        for step in route.steps:
            counts = counts_of(counts, step)
        if to.unclear(counts):
            return None
        archives = self.rules is not None and self.rules.archives(table)
        looks = bool(to.relation.key) or any(counts.get(k) for k in "UDT")
        return TaskBatch(
            table,
            self.paths.changes(table),
            shares.path(table),
            to.relation,
            segment.after,
            segment.upto,
            segment.position,
            adds=archives or not looks,
            tolerant=segment.tolerant,
            logged=segment.logged,
            counts=counts,
            projection=projection,
        )

    def _prepared(self, one: TaskBatch, baseline: Baseline | None) -> TaskBatch | None:
        applier = self._applier(one)
        return applier.prepared(one, baseline.number if baseline else 0) if applier else one

    def run(self, todo: Sequence[TaskBatch]) -> dict[str, ApplyResult | TailraceError | None]:
        """Applies them; gives of each table what was done, its error, or None: it needs a job of its own."""
        if not todo or (shares := self.target.capabilities.shares) is None:
            return {}
        try:
            together = shares.merge_many(todo)
        except Exception as error:  # noqa: BLE001 - each gets a job of its own, and its own error
            logger.warning("%d tables are applied one by one: %s", len(todo), error)
            return dict.fromkeys([one.table for one in todo])
        found: dict[str, ApplyResult | TailraceError | None] = {}
        for one, made in zip(todo, together, strict=True):
            applier = self._applier(one)
            if made is None or isinstance(made, TailraceError):
                found[one.table] = in_window(one.table, made) if one.tolerant else made
            elif applier is None:
                found[one.table] = ApplyResult(one.upto, outcome=made.outcome)
            else:
                try:
                    found[one.table] = applier.went(one, made)
                except Exception as error:  # noqa: BLE001 - a policy says so, for one; the others go on
                    found[one.table] = from_spark(error, where=f"apply {one.table}")
            done = found[one.table]
            if self.rules and isinstance(done, ApplyResult):
                self.rules.applied(one.table, done.upto)
        return found

    def _applier(self, one: TaskBatch) -> RulesApply | None:
        if self.rules is None:
            return None
        return self.rules.of(one.table, one.relation, window=one.tolerant, logged=one.logged)
