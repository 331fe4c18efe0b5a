"""Applies changes under rules, and logs the outcome of every change.

The order is: exceptions, target, key log, each with its progress in its own commit. The key log's parts are
written before the target's commit; they become visible after it. After a crash between the two, the next call
decides the changes again, as of the target's version before the batch, and logs what is missing.

Changes come from a change table of another product (`apply`), or from a task (`prepared`, `finished`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from ..engine.rules import Rules
from ..errors import ApplyError, ConfigError, LimitReachedError, TailraceError
from ..keylog.change_range import ChangeRange
from ..keylog.exceptions import Exceptions, Holds, Suspensions
from ..keylog.key_log import KeyLog
from ..keylog.outbox import recover
from ..lake import delta as lake
from ..model.change import ChangeTable, Relation
from ..model.types import schema_of
from ..targets import keyless as whole_rows
from ..targets.audit import Audited
from ..targets.base import Target, gone
from ..targets.capabilities import Shares
from ..targets.change_batch import TaskBatch
from ..targets.delta.local import PartTask, write_parts
from ..targets.delta.target import DeltaTarget
from ..targets.images import col, explaining
from ..targets.scratch import scratch
from ..targets.staged_changes import stage
from . import audits, rejects, target_mode
from .apply_result import ApplyResult, summed
from .conflict_policy import Later, RulesEnds
from .transactions import by_transaction, middle_of
from .vendor import incoming

if TYPE_CHECKING:
    from .vendor.incoming import Incoming


class RulesApply:
    """Applies changes to a target under rules.

    Args:
        target: the target.
        rules: for all tables.
        root: folder of exceptions and suspensions.
        task: `TASK_NAME` in exceptions and suspensions.
        keylog: None: no key log.
        suspensions: where tables are suspended; below `root` when not given.
        window: the changes are in the open window of a baseline.
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
        self._target, self._rules, self._root = target, rules, root
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

    # A task's batches.

    def prepared(self, batch: TaskBatch, baseline: int) -> TaskBatch:
        """A batch with what its merge needs to find and log the outcome of the changes. `baseline` grows with
        each new one of the table: conflicts and flags are counted again then."""
        self._begin(batch.table, batch.after, baseline)
        if self.adds_columns and not batch.logs:
            if baseline and not self._target.exists(batch.table):
                raise gone(batch.table)
            self.alter(batch.table, batch.relation, batch.relation)
        return self._ready(batch)

    def finished(self, batch: TaskBatch, done: Audited) -> ApplyResult:
        """What such a batch did, its key log committed.

        Raises:
            ApplyError: the rules stop at a change; those before it are applied.
        """
        if done.noted:
            if self._log is not None:
                self._recover(self._log, batch.table, done.upto)
            return ApplyResult(done.upto, outcome=done.outcome)
        done_range = ChangeRange(batch.table, batch.after, batch.upto, 0)
        return self._ends.ended(batch.table, *audits.finished(done, done_range, self._rules, self._log))

    def judged(self, changes: ChangeTable, relation: Relation) -> ChangeTable:
        """The changes, judged by what the target can hold (`rejects`); `relation`: their own columns in
        the target's types."""
        layout = target_mode.relation_of(relation, self._rules)
        there = self._target.exists(relation.table)
        demands = self._target.demands(relation.table) if there else rejects.Demands()
        archives = self._rules.mode == "archive"
        keyed = layout if archives else replace(relation, columns=layout.columns)
        return rejects.judged(changes, keyed, self._rules, demands)

    def count_anew(self, table: str) -> None:
        """Counts the conflicts of a table again that reached a limit, once that was reported."""
        self._exceptions.begin(table, self._rules.limits)

    def alter(self, table: str, before: Relation, after: Relation) -> None:
        """Gives the target a task's new layout, and the columns that the mode adds; existing rows have NULL
        in them."""
        target_mode.alter(self._target, table, before, after, self._rules)

    @property
    def adds_columns(self) -> bool:
        """Whether the target has columns that the source has not."""
        return self._rules.mode in ("archive", "soft_delete")

    # Change tables of other products.

    def apply(
        self, changes: ChangeTable, look: Incoming | None = None, *, transactional: bool = False
    ) -> ApplyResult:
        """Applies the changes of a change table that the target does not have yet.

        Args:
            changes: the change table.
            look: what `incoming.look` finds in it, if that is known.
            transactional: each transaction is committed separately.

        Raises:
            ApplyError: a change that the rules stop at; those before it are applied.
            ConfigError: the target was made in another mode.
            UnsupportedError: a keyless table, unless the mode is `archive`.
        """
        if held := self.suspensions.reason(changes.name):
            return ApplyResult(suspended=held)
        try:
            with explaining(changes.name, f"apply {changes.name}"):
                return self._apply(changes, look, transactional=transactional)
        except LimitReachedError:
            self.count_anew(changes.name)
            raise

    def _apply(self, changes: ChangeTable, look: Incoming | None, *, transactional: bool) -> ApplyResult:
        name, reached = changes.name, self._reached(changes.name, changes.columns)
        after = reached if self._log is None else self._logged(self._log, name, reached)
        fresh = incoming.newer(changes, after)
        found = look if look is not None and fresh is changes else incoming.look(fresh)
        if found.upto <= after:
            return ApplyResult()
        if after < reached:
            self._refuse_gap(changes, after, reached)
        found = replace(found, relation=self._layout(changes, found))
        if found.upto > reached:
            incoming.lay_out(self._target, target_mode.relation_of(found.relation, self._rules))
        with self._staged(self.judged(fresh, found.relation), found, after) as batch:
            if not transactional:
                return self._merged(batch)
            logged = [batch.between(after, reached)] if after < reached else []
            rest = batch.between(max(after, reached), found.upto)
            memory = self._target.capabilities.memory_bytes
            return self._each(chain(logged, by_transaction(rest, memory) if rest.after < rest.upto else []))

    def _each(self, batches: Iterable[TaskBatch]) -> ApplyResult:
        """Merges batches, one after the other, until the table is suspended."""
        found: list[ApplyResult] = []
        for batch in batches:
            found.append(self._merged(batch))
            if found[-1].suspended is not None:
                break
        return summed(found)

    def _logged(self, log: KeyLog, name: str, reached: int) -> int:
        """The change number that a table has reached in its target and in its key log."""
        if (standing := log.standing(name).reached) is None:
            log.begin(name, reached)
            return reached
        if standing < reached and self._target.capabilities.notes is not None:
            self._recover(log, name, reached)
            return reached
        return min(standing, reached)

    def _recover(self, log: KeyLog, name: str, reached: int) -> None:
        """Logs by the target's notes what a crash kept from the key log. A batch that has no note changed
        nothing that is logged."""
        recover(self._target, log)
        if (log.standing(name).reached or 0) < reached:
            log.commit([], ChangeRange(name, reached, reached, 0))

    def _refuse_gap(self, changes: ChangeTable, after: int, reached: int) -> None:
        """Raises ApplyError unless the changes that the key log lacks are there."""
        if incoming.look(incoming.newer(changes, after, reached)).upto != reached and self._log is not None:
            raise ApplyError(
                f"the key log ends at change {after}, the target at {reached}",
                where=f"{changes.name}, {self._log.path}",
                hint="give the change tables of the last call again: the key log lacks their changes",
            )

    def _layout(self, changes: ChangeTable, found: Incoming) -> Relation:
        """The layout of the changes: their own, but in columns of the target that cannot follow in its types,
        whose values are judged then."""
        if not found.relation.key and self._rules.mode != "archive":
            whole_rows.refuse_marks(changes.name, self._rules)
            whole_rows.refuse(changes.name, found.wrong)
        if self._rules.on["data_error"] == "stop" or not self._target.exists(changes.name):
            return found.relation
        return rejects.held_in(found.relation, self._target.columns(changes.name))

    @contextmanager
    def _staged(
        self, changes: ChangeTable, found: Incoming, after: int, *, logs: bool = False
    ) -> Iterator[TaskBatch]:
        """The batch of changes that Spark computes, in files."""
        relation, shares = found.relation, self._target.capabilities.shares
        assert shares is not None  # noqa: S101 - of every target
        with scratch(self._root) as folder:
            staged = stage(changes, relation, folder, ordered=self._target.capabilities.ordered)
            looks = self._rules.mode != "archive" and staged.looks(relation.key)
            yield TaskBatch(
                relation.table, folder, shares.path(relation.table), relation, after, found.upto,
                staged=staged, counts=staged.counts, adds=not looks, logs=logs,
            )  # fmt: skip

    def _merged(self, batch: TaskBatch) -> ApplyResult:
        """Merges a batch: first what the key log alone lacks, then what the target lacks."""
        found: list[ApplyResult] = []
        while not found or (found[-1].suspended is None and 0 <= found[-1].upto < batch.upto):
            rest = replace(batch, after=max([batch.after, *(done.upto for done in found)]))
            while (done := _one(self._target.capabilities.shares, self._ready(rest))) is None:
                rest = rest.between(rest.after, middle_of(rest.located()))
            found.append(self.finished(rest, done))
        return summed(found)

    def _ready(self, batch: TaskBatch) -> TaskBatch:
        return audits.prepared(batch, self._target, self._rules, self._exceptions, self._log)

    def preview(self, changes: ChangeTable) -> ApplyResult:
        """Returns the result that `apply` would have now; writes nothing."""
        if held := self.suspensions.reason(changes.name):
            return ApplyResult(suspended=held)
        with explaining(changes.name, f"apply {changes.name}"):
            return self._preview(changes)

    def _preview(self, changes: ChangeTable) -> ApplyResult:
        reached = self._reached(changes.name, changes.columns)
        fresh = incoming.newer(changes, reached)
        found = incoming.look(fresh)
        if found.upto <= reached:
            return ApplyResult()
        found = replace(found, relation=self._layout(changes, found))
        layout = target_mode.relation_of(found.relation, self._rules)
        incoming.lay_out(self._target, layout, dry_run=True)
        judged = self.judged(fresh, found.relation)
        with self._staged(judged, found, reached, logs=True) as batch:
            to, path = self._previewed(batch.changes, fresh, layout)
            order = audits.prepared(batch, self._target, self._rules, self._exceptions, None)
            done = _one(to, replace(order, target=path))
        assert done is not None  # noqa: S101 - a Delta table merges every batch
        whole = ChangeRange(changes.name, reached, found.upto, 0)
        result, ends, _ = audits.finished(done, whole, self._rules, None)
        said = f"would {ends[2]}: {ends[1]} at change_seq {ends[0]}" if ends else None
        return replace(result, suspended=said)

    def _previewed(self, folder: str, changes: ChangeTable, layout: Relation) -> tuple[Shares, str]:
        """Returns the capability that merges for a preview, and the path of the target's rows.

        The rows are in a temporary folder if the target is missing or a database.
        """
        name, able = layout.table, self._target.capabilities
        there = self._target.exists(name)
        if there and able.versions and able.shares is not None:
            return able.shares, able.shares.path(name)
        copy, schema = (
            DeltaTarget(changes.df.sparkSession, folder, app_id="preview"),
            schema_of(layout.columns),
        )
        lake.create(path := copy.path(name), schema)
        if there:
            rows = self._target.rows_there(layout, changes.df.select(*map(col, layout.key)))
            files, _ = write_parts(rows, PartTask(path, schema))
            lake.commit(path, files, progress={})
        return copy, path

    def _begin(self, table: str, reached: int, baseline: int) -> None:
        if self._log is not None:
            self._log.begin(table, reached, baseline=baseline)
        self._ends.begin(table, reached, baseline)

    def _reached(self, name: str, own: Collection[str]) -> int:
        if not self._target.exists(name):
            return -1
        target_mode.check_mode(self._target, name, own, self._rules)
        return self._target.progress(name)


def _one(shares: Shares | None, batch: TaskBatch) -> Audited | None:
    assert shares is not None  # noqa: S101 - of every target
    (done,) = shares.merge_many([batch])
    if isinstance(done, TailraceError):
        raise done
    return done
