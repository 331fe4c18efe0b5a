"""Writes what a batch under rules comes to: exceptions, target, key log, visible in that order."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.rules import Rules
from ..execution import thread_pool
from ..model.change import Relation
from . import effects
from .apply_result import ApplyResult, result_of
from .keylog.exceptions import Exceptions
from .keylog.key_log import KeyLog
from .keylog.tasks import LogTask, fields_of, header_of, write
from .plan import TableBatch
from .rules_batch import RulesBatch
from .targets.base import Target
from .targets.outcome import ApplyOutcome


@dataclass(frozen=True)
class RulesWriter:
    """Writes batches to a target."""

    target: Target
    rules: Rules
    exceptions: Exceptions
    log: KeyLog | None

    def both(self, batch: RulesBatch, layout: Relation) -> ApplyResult:
        """The batch to the target and, along with it, its rows of the key log; visible in that order."""
        self._keep(batch)
        one, files = batch.range(self.rules), []
        with thread_pool("target", 1) as pool:
            writing = pool.submit(self._write, batch, layout)
            if self.log is not None:
                files = self.log.write(batch.logged, batch.expected, self.rules, one)
            outcome = writing.result()
        if self.log is not None:
            self.log.commit(files, one)
        return _result(batch, self.rules, outcome)

    def _write(self, batch: RulesBatch, layout: Relation) -> ApplyOutcome:
        found, expected = batch.found, batch.expected
        changes, counts = batch.changes, dict(found.counts)
        if self.rules.mode == "archive":
            changes, counts = effects.archived(changes, counts, list(self.target.columns(batch.table)))
        elif expected.folded is not None:
            counts = dict(expected.counts)
        made = TableBatch(
            batch.table, layout, changes, found.upto, counts, batch.tolerant, batch.looked, expected.folded,
            batch.based,
        )  # fmt: skip
        return self.target.apply(made)

    def _keep(self, batch: RulesBatch) -> None:
        rules, expected = self.rules, batch.expected
        if not rules.keeps:
            return
        before = self.exceptions.counted(batch.table, batch.after, rules.limits)
        self.exceptions.take_back(batch.table, batch.after, before)
        if not any((o := rules.outcome(s)).flagged and not o.effective for s in expected.tally):
            return
        kept, changes = self.exceptions, batch.logged
        one = batch.range(rules)
        header = header_of(fields_of(changes), changes.df.columns, changes.key, one)
        task = LogTask(kept.path, kept.rows_schema, header, rules, exceptions=kept)
        files = write(changes, expected, task, counts=False)
        counts = expected.counted(rules, before)
        kept.keep(files, batch.table, batch.found.upto, after=batch.after, counts=counts)


def _result(batch: RulesBatch, rules: Rules, outcome: ApplyOutcome) -> ApplyResult:
    return result_of(batch.found.upto, batch.found.counts, batch.expected, rules, outcome)
