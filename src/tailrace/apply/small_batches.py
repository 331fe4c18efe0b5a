"""Small batches of many tables, in one Spark job: which tables can share it, and what came of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import TailraceError, from_spark
from ..state.ledger import Baseline
from .apply_result import ApplyResult
from .reading import ApplyPaths
from .route import Route
from .rules_apply import RulesApply
from .segment import Segment
from .targets.base import Target
from .targets.delta.many import ROWS, Small
from .task_rules import TaskRules

logger = logging.getLogger("tailrace.apply")
TOGETHER = 4
"""From so many tables on, small batches share a job."""


@dataclass(frozen=True)
class SmallBatches:
    """Applies them to a target."""

    target: Target
    paths: ApplyPaths
    rules: TaskRules | None

    def may(self, table: str, counts: Mapping[str, int]) -> bool:
        """Whether a table's batch may be one: few changes, no truncate, a target of its own."""
        shares = self.target.capabilities.shares
        if shares is None or counts.get("T") or sum(counts.get(k, 0) for k in "IUD") > ROWS:
            return False
        return shares.own_path(table) is not None

    def of(
        self, table: str, routes: Sequence[tuple[Segment, Route]], baseline: Baseline | None
    ) -> Small | None:
        """A table's batch; None: it has a new layout, a mapping or an open window to follow, or is applied
        transaction by transaction, or by rules that need more than one task."""
        shares = self.target.capabilities.shares
        path = shares.own_path(table) if shares is not None else None
        if len(routes) != 1 or path is None:
            return None
        ((one, route),) = routes
        if route.steps or route.relation != route.before or not one.relation.key or one.tolerant:
            return None
        if self.rules and self.rules.transactional(table):
            return None
        small = Small(
            table,
            self.paths.changes(table),
            path,
            one.relation,
            one.after,
            one.upto,
            one.position,
        )
        applier = self._applier(small)
        return applier.small(small, baseline.number if baseline else 0) if applier else small

    def run(self, todo: Sequence[Small]) -> dict[str, ApplyResult | TailraceError | None]:
        """Applies them; gives of each table what was done, its error, or None: it needs a job of its own."""
        if len(todo) < TOGETHER or (shares := self.target.capabilities.shares) is None:
            return {}
        try:
            together = shares.merge_many(todo)
        except Exception as error:  # noqa: BLE001 - each gets a job of its own, and its own error
            logger.warning("%d tables could not share a job: %s", len(todo), error)
            return dict.fromkeys([small.table for small in todo])
        found: dict[str, ApplyResult | TailraceError | None] = {}
        for small, made in zip(todo, together, strict=True):
            applier = self._applier(small)
            if made is None or isinstance(made, TailraceError):
                found[small.table] = made
            elif applier is None:
                found[small.table] = ApplyResult(small.upto, outcome=made.outcome)
                if self.rules:
                    self.rules.passed(small.table, small.upto)
            else:
                try:
                    found[small.table] = applier.went(small, made)
                except Exception as error:  # noqa: BLE001 - a policy says so, for one; the others go on
                    found[small.table] = from_spark(error, where=f"apply {small.table}")
        return found

    def _applier(self, small: Small) -> RulesApply | None:
        return self.rules.of(small.table, small.relation) if self.rules else None
