"""Applies a change table under rules, and logs the outcome of every change.

The order is: exceptions, target, key log, each with its progress in its own commit. The key log's parts are
written while the target is; they become visible after it. A crash between the two is made good by the next
call: it looks at the target as it was before the batch (Delta keeps that version) and logs what is missing.

Changes come from somebody's change table (`apply`: what it holds is looked at) or from a task (`follow`: the
store has counted them, and positions say where a range of them begins and ends).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine.rules import Rules
from ..errors import ApplyError, ConfigError, LimitReachedError
from ..model.change import ChangeTable, Relation
from . import effects, incoming, one_task
from .apply_result import ApplyResult, result_of
from .constraint_check import ConstraintCheck, anew
from .expect import Ends, Expected, added, expect
from .gone import gone
from .images import col, explaining
from .keylog.change_range import ChangeRange
from .keylog.exceptions import Exceptions, Holds, Suspensions
from .keylog.key_log import KeyLog
from .keylog.outbox import recover
from .plan import TableBatch
from .rules_batch import Cut, RulesBatch, of_table, of_task
from .rules_ends import Later, RulesEnds
from .rules_write import RulesWriter
from .targets.audit import LOST, Audited
from .targets.base import Target
from .targets.outcome import ApplyOutcome
from .targets.task_batch import TaskBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RulesApply:
    """Applies change tables to a target under rules.

    Args:
        target: where to.
        rules: for all tables.
        root: folder of exceptions and suspensions.
        task: `TASK_NAME` in exceptions and suspensions.
        keylog: None: no key log.
        suspensions: where tables are suspended; below `root` when not given.
        window: the changes lie in the open window of a baseline.
    """

    def __init__(
        self,
        target: Target,
        rules: Rules,
        *,
        root: str,
        task: str,
        keylog: KeyLog | None = None,
        suspensions: Holds | None = None,
        later: Later | None = None,
        window: bool = False,
    ) -> None:
        self._target, self._rules = target, rules
        self._log = keylog if keylog is None or keylog.mode != "off" else None
        able = target.capabilities
        if self._log is not None and able.notes is None and not able.versions:
            raise ConfigError(
                "the target has neither versions nor notes: a crash would leave gaps in its key log",
                hint="apply without a key log, or let the target declare one of them (`Capabilities`)",
            )
        self._exceptions = Exceptions(root, task)
        self.suspensions: Holds = suspensions or Suspensions(root, task)
        self._ends = RulesEnds(rules, self._exceptions, self.suspensions, later, window=window)
        self._writer = RulesWriter(target, rules, self._exceptions, self._log)

    def apply(self, changes: ChangeTable, look: incoming.Incoming | None = None) -> ApplyResult:
        """Applies what the target has not yet of a change table. `look`: what `incoming.look` finds in it, if
        that is known.

        Raises:
            ApplyError: a change that the rules stop at; those before it are applied.
            ConfigError: the target was made in another mode.
            UnsupportedError: a table without key, but for archives.
        """

        def work() -> ApplyResult:
            if held := self.suspensions.reason(changes.name):
                return ApplyResult(suspended=held)
            return self._apply(changes.name, changes.columns, self._cut(changes, look))

        try:
            return self._guarded(changes, work)
        except LimitReachedError:
            self.count_anew(changes.name)
            raise

    def follow(self, batch: TableBatch, after: int, *, exact: bool, baseline: int = 0) -> ApplyResult:
        """Applies a range of a task's changes, those with numbers in (`after`, `batch.upto`], as far as the
        target lacks them, and logs what the key log lacks of them.

        Who tells of a limit that was reached has it `count_anew`.

        The target has their layout (`alter`). `exact`: the batch's counts are those of its changes, and no
        bounds. `baseline` grows with each new one of the table: conflicts and flags are counted anew then.

        Raises: as `apply`.
        """

        def work() -> ApplyResult:
            self._begin(batch.table, after, baseline)
            cut = of_task(batch, after, exact=exact)
            done = self._apply(batch.table, [c.name for c in batch.relation.columns], cut, batch.upto)
            return done if done.upto >= 0 else self._there_already(batch, done)

        return self._guarded(replace(batch.changes, name=batch.table), work)

    def _there_already(self, batch: TableBatch, done: ApplyResult) -> ApplyResult:
        """What was done where nothing was written, with how far the target is in the batch, and the version
        that has it."""
        upto = min(self._target.progress(batch.table), batch.upto)
        there = TableBatch.there(batch.table, batch.relation, upto, based=batch.based)
        return replace(done, upto=upto, outcome=self._target.apply(there))

    def prepared(self, batch: TaskBatch, baseline: int) -> TaskBatch | None:
        """A batch for one task with what its merge needs to find and log the outcome of the changes; None
        when it needs more than one task. `baseline` as in `follow`."""
        self._begin(batch.table, batch.after, baseline)
        if self.adds_columns:
            if baseline and not self._target.exists(batch.table):
                raise gone(batch.table)
            self.alter(batch.table, batch.relation, batch.relation)
        return one_task.prepared(batch, self._target, self._rules, self._exceptions, self._log)

    def went(self, batch: TaskBatch, done: Audited) -> ApplyResult:
        """What such a batch did, its key log committed.

        Raises:
            ApplyError: the rules stop at a change; those before it are applied.
        """
        done_range = ChangeRange(batch.table, batch.after, batch.upto, 0)
        return self._ends.ended(batch.table, *one_task.finished(done, done_range, self._rules, self._log))

    def count_anew(self, table: str) -> None:
        """Has a table that reached a limit, and of which somebody is told, meet as many conflicts again."""
        self._exceptions.begin(table, self._rules.limits)

    def alter(self, table: str, before: Relation, after: Relation) -> None:
        """Gives the target a task's new layout, and the columns that the mode adds; rows that are there have
        NULL in them."""
        effects.alter(self._target, table, before, after, self._rules)

    @property
    def adds_columns(self) -> bool:
        """Whether the target has columns that the source has not."""
        return self._rules.mode in ("archive", "soft_delete")

    def preview(self, changes: ChangeTable) -> ApplyResult:
        """What `apply` would do now; nothing is written."""
        return self._guarded(changes, lambda: self._preview(changes))

    def _begin(self, table: str, reached: int, baseline: int) -> None:
        if self._log is not None:
            self._log.begin(table, reached, baseline=baseline)
        self._ends.begin(table, reached, baseline)

    def _apply(self, name: str, own: Collection[str], cut: Cut, end: int | None = None) -> ApplyResult:
        rules, reached = self._rules, self._reached(name, own)
        if self._log is not None:
            until = reached if end is None else min(reached, end)
            self._catch_up(name, cut, until, exact=end is None)
        if end is not None and reached >= end:
            return ApplyResult()
        batch = cut(reached, None)
        if batch.empty:
            return ApplyResult()
        layout = effects.relation_of(batch.found.relation, rules)
        if end is None:
            incoming.lay_out(self._target, layout)
        attempt = one_task.attempt(self._target, batch, layout, rules, self._exceptions, self._log)
        if attempt == LOST:  # what an attempt found is to be found anew
            if self._log is not None:
                recover(self._target, self._log)
            return self._apply(name, own, cut, end)
        if isinstance(attempt, tuple):
            return self._ends.ended(name, *attempt)
        if rules.mode != "archive":  # which looks at no row
            keys = batch.changes.df.select(*map(col, batch.found.relation.key))
            batch = replace(batch, looked=self._target.look(batch.found.relation, keys))
        there = self._there(batch, layout)
        batch, ends, why = self._decided(self._judged(batch), layout, there)
        done = ApplyResult() if batch.empty else self._writer.both(batch, layout)
        return self._ends.ended(name, done, ends, why)

    def _cut(self, changes: ChangeTable, look: incoming.Incoming | None = None) -> Cut:
        looks = self._rules.on["data_error"] != "stop" and self._target.exists(changes.name)
        return of_table(changes, self._rules, self._target.columns(changes.name) if looks else {}, look)

    def _preview(self, changes: ChangeTable) -> ApplyResult:
        if held := self.suspensions.reason(changes.name):
            return ApplyResult(suspended=held)
        reached = self._reached(changes.name, changes.columns)
        batch = self._cut(changes)(reached, None)
        if batch.empty:
            return ApplyResult()
        layout = effects.relation_of(batch.found.relation, self._rules)
        incoming.lay_out(self._target, layout, dry_run=True)
        there = self._there(batch, layout, folds=False) if self._target.exists(changes.name) else None
        batch, ends, _ = self._decided(self._judged(batch), layout, there, folds=False)
        said = f"would {ends[2]}: {ends[1]} at change_seq {ends[0]}" if ends else None
        done = result_of(batch.found.upto, batch.found.counts, batch.expected, self._rules, ApplyOutcome())
        return replace(done, suspended=said)

    def _catch_up(self, name: str, cut: Cut, reached: int, *, exact: bool) -> None:
        """Logs what a crash kept from the key log after the target had it.

        `exact`: the target's number is that of a change, which must be among those given.
        """
        assert self._log is not None  # noqa: S101 - the caller looked
        standing = self._log.standing(name)
        if standing.reached is None:
            self._log.begin(name, reached)
            return
        if standing.reached >= reached:
            return
        if self._target.capabilities.notes is not None:  # one that has none changed nothing that is logged
            recover(self._target, self._log)
            if (self._log.standing(name).reached or 0) < reached:
                self._log.commit([], ChangeRange(name, reached, reached, 0))
            return
        batch = cut(standing.reached, reached)
        if exact and batch.found.upto != reached:
            raise ApplyError(
                f"the key log ends at change {standing.reached}, the target at {reached}",
                where=f"{name}, {self._log.path}",
                hint="give the change tables of the last call again: the key log lacks their changes",
            )
        if not any(batch.found.counts[k] for k in "IUDT"):  # a new baseline had them: no version is needed
            self._log.commit([], batch.range(self._rules))
            return
        layout = effects.relation_of(batch.found.relation, self._rules)
        there = self._there(batch, layout, standing.reached, folds=False)
        batch = self._judged(batch, standing.reached)
        batch = replace(batch, expected=self._met(batch, layout, there, folds=False))
        one = batch.range(self._rules)
        self._log.commit(self._log.write(batch.logged, batch.expected, self._rules, one), one)

    def _judged(self, batch: RulesBatch, reached: int | None = None) -> RulesBatch:
        return ConstraintCheck(self._target, self._rules, reached).judged(batch)

    def _met(
        self, batch: RulesBatch, layout: Relation, there: DataFrame | None, *, folds: bool = True
    ) -> Expected:
        """What its changes meet, and what is left of them."""
        changes = batch.changes
        if self._rules.mode == "archive":
            key, counts = batch.found.relation.key, batch.found.counts
            moved = self._log is not None and bool(counts.get("key_changes") if key else counts.get("U"))
            return added(changes, key if moved else None)
        memory = self._target.capabilities.memory_bytes
        return expect(changes, layout, self._rules, batch.found.counts, there, folds=folds, memory=memory)

    def _decided(
        self, batch: RulesBatch, layout: Relation, there: DataFrame | None, *, folds: bool = True
    ) -> tuple[RulesBatch, Ends | None, str | None]:
        """The batch up to the change before which it ends, if there is one, and what is wrong with its
        values."""
        counted = {}
        if self._rules.limits:
            counted = self._exceptions.counted(batch.table, batch.after, self._rules.limits)
        met = self._met(batch, layout, there, folds=folds)
        if (ends := met.ends(self._rules, counted)) is None:
            return replace(batch, expected=met), None, None
        rest = batch.before(ends)
        if not rest.empty:
            rest = replace(rest, expected=self._met(rest, layout, there, folds=folds))
        return rest, ends, met.why(ends[0])

    def _there(
        self, batch: RulesBatch, layout: Relation, reached: int | None = None, *, folds: bool = True
    ) -> DataFrame | None:
        """The keys that have a (living) row in the target (as of when it had reached a number), or the rows,
        when images that lack columns may move them; of a table without key its rows, when changes look for
        some."""
        rules, relation, counts = self._rules, batch.found.relation, batch.found.counts
        if rules.mode == "archive":
            return None
        if not relation.key:
            looks = counts.get("U") or counts.get("D")
            none = batch.changes.df.limit(0)
            return self._target.rows_there(relation, none, reached=reached) if looks else None
        keys = batch.changes.df.select(*map(col, relation.key))
        if folds and counts.get("absent") and counts.get("key_changes"):
            return self._target.rows_there(layout, keys, reached=reached)
        living = rules.soft_column if rules.mode == "soft_delete" else None
        return self._target.keys_there(relation, keys, living=living, reached=reached)

    def _reached(self, name: str, own: Collection[str]) -> int:
        if not self._target.exists(name):
            return -1
        effects.check_mode(self._target, name, own, self._rules)
        return self._target.progress(name)

    def _guarded(self, changes: ChangeTable, work: Callable[[], ApplyResult]) -> ApplyResult:
        with explaining(changes.name, f"apply {changes.name}"):
            return anew(work)
