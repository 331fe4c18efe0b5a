"""Writes what a batch under rules comes to: exceptions, target, key log, visible in that order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ..engine.rules import Rules
from ..model.change import ChangeTable, Relation
from . import data_errors, effects, limits
from .exceptions import Exceptions
from .expect import Expected
from .fold import col
from .keylog import KeyLog
from .keylog_tasks import LogTask, sheet_of, write
from .noted import note_of
from .outcomes import outcomes
from .plan import TableBatch
from .ruled_batch import Batch
from .targets.base import Outcome, Target
from .told import Done, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Writer:
    """Writes batches to a target; `met` looks what changes meet."""

    target: Target
    rules: Rules
    exceptions: Exceptions
    log: KeyLog | None
    met: Callable[[Batch, DataFrame | None], Expected]

    def both(self, batch: Batch, layout: Relation, there: DataFrame | None) -> Done:
        """The batch to the target and, beside it, its rows of the key log; visible in that order."""
        rules = self.rules
        if not batch.free(rules):
            self._keep(batch)
        if self.target.capabilities.notes is not None:
            return self._noted(batch, layout)
        with ThreadPoolExecutor(1, thread_name_prefix="target") as pool:
            writing = pool.submit(self._write, batch, layout)
            if batch.free(rules):
                batch = replace(batch, expected=self.met(batch, there))
            one, files = batch.stretch(rules), []
            if self.log is not None:
                files = self.log.write(batch.logged, batch.expected, rules, one)
            outcome = writing.result()
        if self.log is not None:
            self.log.commit(files, one)
        return _told(batch, rules, outcome)

    def _noted(self, batch: Batch, layout: Relation) -> Done:
        """The same with a database: the key log's parts first, whose names go into its transaction."""
        one, log, rules = batch.stretch(self.rules), self.log, self.rules
        if log is None:
            return _told(batch, rules, self._write(batch, layout))
        files = log.write(batch.logged, batch.expected, rules, one)
        note = note_of(files, one, log.path, log.sort), log.visible(batch.table)
        outcome = self._write(batch, layout, note)
        log.commit(files, one)
        return _told(batch, rules, outcome)

    def _write(self, batch: Batch, layout: Relation, note: tuple[str, int] | None = None) -> Outcome:
        rules, found = self.rules, batch.found
        if rules.mode == "archive":
            order = list(self.target.columns(batch.table))
            good = data_errors.without(batch.changes, batch.bad)
            changes, counts = effects.archived(good, found.counts, order)
        elif batch.free(rules):
            changes, counts = batch.changes, found.counts
        else:
            good = data_errors.without(batch.changes, batch.bad)
            changes, counts = effects.effective(
                good, batch.expected, rules, found.counts, found.relation, partial(self._rows, good, layout)
            )
        looked = batch.looked
        made = TableBatch(batch.table, layout, changes, found.upto, counts, batch.tolerant, looked)
        if note is not None and (notes := self.target.capabilities.notes) is not None:
            return notes.apply_noted(made, *note)
        return self.target.apply(made)

    def _rows(self, changes: ChangeTable, layout: Relation) -> DataFrame:
        """The target's rows under the keys of changes."""
        keys = changes.df.select(*map(col, layout.key))
        return self.target.rows_there(layout, keys)

    def _keep(self, batch: Batch) -> None:
        rules, expected = self.rules, batch.expected
        if not rules.keeps:
            return
        before = self.exceptions.counted(batch.table, batch.after, rules.limits)
        self.exceptions.take_back(batch.table, batch.after, before)
        if not any((o := rules.outcome(s)).flagged and not o.effective for s in expected.tally):
            return
        kept, changes = self.exceptions, batch.logged
        sheet = sheet_of(changes, None, batch.stretch(rules), None)
        task = LogTask(kept.path, kept.rows_schema, sheet, rules, exceptions=kept)
        files = write(outcomes(changes, expected), task, changes, counts=False)
        counts = {
            k: (before.get(k, 0), before.get(k, 0) + n) for k, n in limits.tallied(expected, rules).items()
        }
        kept.keep(files, batch.table, batch.found.upto, after=batch.after, counts=counts)


def _told(batch: Batch, rules: Rules, outcome: Outcome) -> Done:
    return told(batch.found.upto, batch.found.counts, batch.expected, rules, outcome)
