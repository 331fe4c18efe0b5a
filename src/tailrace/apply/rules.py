"""Applies batches under rules, and logs the outcome of every change.

The order is: exceptions, target, key log, each with its progress in its own commit. The files of the key log
are written before the commit of the target, and become visible after it. After a crash between the two, the
changes are decided again with the target's version before the batch, and the missing rows are logged.
"""

from __future__ import annotations

from dataclasses import replace

from ..engine.rules import Rules
from ..errors import ConfigError
from ..keylog.control_tables import ApplyExceptions, Suspensions, SuspensionStore
from ..keylog.key_log import KeyLog
from ..keylog.notes import recover
from ..model.change import ChangeTable, Relation
from ..targets.base import Constraints, Target, missing_baseline
from ..targets.change_batch import ChangeBatch
from ..targets.merge_result import MergeResult
from . import audits, rejects, target_mode
from .apply_result import ApplyResult
from .conflict_policy import ConflictPolicy, Later


class RulesApplier:
    """Applies batches to a target under rules.

    Args:
        target: the target.
        rules: the rules of all batches.
        root: folder of exceptions and suspensions.
        task: `TASK_NAME` in exceptions and suspensions.
        keylog: the key log, if there is one.
        suspensions: where tables are suspended; below `root` by default.
        later: runs work once the key log is visible; by default at once.
        window: whether the changes are in the open window of a baseline.
    """

    def __init__(
        self,
        target: Target,
        rules: Rules,
        *,
        root: str,
        task: str,
        keylog: KeyLog | None = None,
        suspensions: SuspensionStore | None = None,
        later: Later | None = None,
        window: bool = False,
    ) -> None:
        self.target, self.rules = target, rules
        self.log = keylog if keylog is None or keylog.mode != "off" else None
        capabilities = target.capabilities
        if self.log is not None and capabilities.notes is None and not capabilities.versions:
            raise ConfigError(
                "the target has neither versions nor notes: a crash would leave gaps in its key log",
                hint="apply without a key log, or let the target declare one of them (`Capabilities`)",
            )
        self._exceptions = ApplyExceptions(root, task)
        self.suspensions: SuspensionStore = suspensions or Suspensions(root, task)
        self._policy = ConflictPolicy(rules, self._exceptions, self.suspensions, later, window=window)

    def prepared(self, batch: ChangeBatch, baseline: int) -> ChangeBatch:
        """Returns a batch with its audit.

        `baseline`: the number of the table's baseline. Conflicts and flags are counted from the newest one
        on.
        """
        self.begin(batch.table, batch.range.lower, baseline)
        if self.adds_columns and not batch.log_only:
            if baseline and not self.target.exists(batch.table):
                raise missing_baseline(batch.table)
            self.alter(batch.table, batch.relation, batch.relation)
        return self.audited(batch)

    def finished(self, batch: ChangeBatch, done: MergeResult) -> ApplyResult:
        """Commits the key log of a merged batch. Returns its result.

        Raises:
            ApplyError: the rules stop at a change; those before it are applied.
        """
        if done.noted:
            if self.log is not None and done.end is not None:
                self.recover(batch.table, done.end)
            return ApplyResult(done.end, outcome=done.outcome)
        return self._policy.ended(batch.table, *audits.finished(done, batch.table, self.rules, self.log))

    def audited(self, batch: ChangeBatch, *, logs: bool = True) -> ChangeBatch:
        """Returns a batch with its audit, without changes in the target. `logs`: whether it is logged."""
        return audits.prepared(batch, self.target, self.rules, self._exceptions, self.log if logs else None)

    def begin(self, table: str, progress: int, baseline: int) -> None:
        """Starts to log and count the changes of a table after a change number, if it is new."""
        if self.log is not None:
            self.log.begin(table, progress, baseline=baseline)
        self._policy.begin(table, progress, baseline)

    def recover(self, table: str, progress: int) -> None:
        """Logs the rows that a crash has kept from the key log, from the target's notes. A batch without a
        note has nothing to log."""
        assert self.log is not None  # noqa: S101 - only called with a key log
        recover(self.target.capabilities.key_log_notes(), self.log)
        if (self.log.state(table).progress or 0) < progress:
            self.log.commit(table, progress)

    def judged(self, changes: ChangeTable, relation: Relation) -> ChangeTable:
        """Returns the changes, those that the target cannot accept with the reason (see `rejects`).

        `relation`: the columns of the changes with the target's types.
        """
        layout = target_mode.relation_of(relation, self.rules)
        exists = self.target.exists(relation.table)
        constraints = self.target.constraints(relation.table) if exists else Constraints()
        archives = self.rules.mode == "archive"
        keyed = layout if archives else replace(relation, columns=layout.columns)
        return rejects.judged(changes, keyed, self.rules, constraints)

    def count_again(self, table: str) -> None:
        """Counts the conflicts of a table from zero again, after a limit was reached and reported."""
        self._exceptions.reset_counts(table, self.rules.limits)

    def alter(self, table: str, before: Relation, after: Relation) -> None:
        """Gives the target a new layout with the columns that the mode adds."""
        target_mode.alter(self.target, table, before, after, self.rules)

    @property
    def adds_columns(self) -> bool:
        """Whether the mode adds columns to the target."""
        return self.rules.mode in ("archive", "soft_delete")
