"""A segment of one table's changes on its way to the target: under rules or without, at once or one
transaction after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..errors import ConstraintError
from ..lake.failpoints import reach
from ..model.change import ChangeTable
from ..state.ledger import AppliedTable
from .apply_result import ApplyResult
from .gone import gone
from .incoming import newer
from .plan import TableBatch
from .rules_apply import RulesApply
from .segment import Segment
from .targets.base import Target
from .targets.outcome import ApplyOutcome
from .task_rules import TaskRules
from .transactions import transactions
from .window import in_window


@dataclass
class SegmentApply:
    """How a segment is applied; `exact`: its counts are those of its changes, and no bounds; `baseline`: the
    number of the baseline that its target holds, 0: there was none.

    `suspended`, afterwards: why the table takes no more changes; None: it does.
    """

    target: Target
    rules: TaskRules | None
    table: str
    segment: Segment
    exact: bool
    baseline: int = 0
    suspended: str | None = None
    _applier: RulesApply | None = field(init=False)
    _reached: int = field(init=False)

    def __post_init__(self) -> None:
        one = self.segment
        self._applier = None
        if self.rules:
            self._applier = self.rules.of(self.table, one.relation, window=one.tolerant, logged=one.logged)
        logged = self.rules is not None and self.rules.logged(self.table) is not None
        self._reached = self.target.progress(self.table) if logged else -1

    @property
    def unlogged(self) -> int:
        """The change number up to which the target has the segment's changes, and the key log may lack them;
        where the segment begins when there is none."""
        return max(self.segment.after, min(self._reached, self.segment.upto))

    def alter(self) -> None:
        """Gives the target the segment's layout, if that is not behind it (the key log alone lacks it).

        Raises:
            BaselineNeededError: it has gone with its baseline since it was looked up.
        """
        one = self.segment
        if self._reached >= one.upto:
            return
        there = self.target.exists(self.table)
        if self.baseline and not there:
            raise gone(self.table)
        to = self._applier or self.target
        adds = self._applier is not None and self._applier.adds_columns
        if adds or one.relation != one.before or not there:
            reach("apply.layout")
            to.alter(self.table, one.before, one.relation)

    def apply(self, changes: ChangeTable, counts: Mapping[str, int]) -> Iterator[AppliedTable]:
        """Applies the changes; gives what each commit did, until the table is suspended."""
        for batch, after, exact in self._batches(changes, counts):
            done = self._one(batch, after, exact)
            if self.rules:
                self.rules.applied(self.table, done.upto)
            yield applied(self.table, done)
            if done.suspended is not None:
                self.suspended = done.suspended
                return

    def _one(self, batch: TableBatch, after: int, exact: bool) -> ApplyResult:
        if self._applier is not None:
            return self._applier.follow(batch, after, exact=exact, baseline=self.baseline)
        try:
            return ApplyResult(batch.upto, batch.counts, outcome=self.target.apply(batch))
        except ConstraintError as error:
            if not batch.tolerant:
                raise
            raise in_window(self.table, error) from error

    def _batches(
        self, changes: ChangeTable, counts: Mapping[str, int]
    ) -> Iterator[tuple[TableBatch, int, bool]]:
        one = self.segment
        cut = self.rules is not None and self.rules.transactional(self.table)
        if not cut or self.unlogged == one.upto:  # there is no commit of the target to be made
            yield self._batch(changes, one.upto, counts), one.after, self.exact
            return
        kept = changes.with_df(changes.df.persist())
        try:
            found, after = transactions(kept), one.after
            for place, each in enumerate(found, 1):
                upto = one.upto if place == len(found) else each.last
                mine = newer(kept, after, upto)
                yield self._batch(mine, upto, each.counts), after, True
                after = upto
            if not found:
                yield self._batch(kept, one.upto, {}), after, True
        finally:
            kept.df.unpersist()

    def _batch(self, changes: ChangeTable, upto: int, counts: Mapping[str, int]) -> TableBatch:
        one = self.segment
        based = bool(self.baseline)
        return TableBatch(self.table, one.relation, changes, upto, dict(counts), one.tolerant, based=based)


def applied(table: str, done: ApplyResult) -> AppliedTable:
    """What a commit did, for the record."""
    out: ApplyOutcome = done.outcome
    return AppliedTable(
        table,
        out.version,
        out.inserted,
        out.updated,
        out.deleted,
        out.missing,
        out.plan,
        out.seconds,
        upto=done.upto,
        flagged=done.flagged,
        suspended=done.suspended or "",
        conflicts=done.conflicts,
    )


def standing(made: AppliedTable, after: int, upto: int) -> AppliedTable:
    """What a commit of changes in (`after`, `upto`] did, with the number that the table stands at: there
    was nothing new in them, or it was suspended before the first."""
    if made.upto >= 0:
        return made
    return replace(made, upto=after if made.suspended else upto)
