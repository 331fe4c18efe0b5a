"""Applies one round of store batches: merges its tables in parallel, then records the results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import LimitReachedError, TailraceError
from ..execution import thread_pool
from ..model.positions import ChangeRange, order_key
from ..state.ledger import AppliedTable, Stored
from ..targets.change_batch import ChangeBatch
from ..targets.plans import SPECIAL
from .apply_record import ApplyRecord
from .apply_result import applied
from .table_applier import TableApplier

Errors = dict[str, TailraceError]


@dataclass
class Rounds:
    """Applies rounds to tables.

    Attributes:
        tables: applies single tables.
        record: the record of commits.
        parallel: the number of tables that are applied at the same time.
        done: the commits; the caller empties the list.
        failed: the tables that did not get all changes of a round; the caller empties the set.
    """

    tables: TableApplier
    record: ApplyRecord
    parallel: int
    done: list[AppliedTable] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)

    def apply(self, stored: Sequence[Stored], tables: Collection[str], *, newest: bool) -> set[str]:
        """Applies a round to tables that have all earlier changes. Returns those that have all its changes
        afterwards.

        Args:
            stored: the store batches of the round, in order.
            tables: the tables; no others are applied.
            newest: whether the round is later than all recorded ones (see `ApplyRecord.write`).

        Raises:
            TailraceError: the error of a table that ends the task. The commits before it are recorded.
            OvertakenError: targets have changes that the key log does not have; nothing is recorded.
        """
        last, progress = stored[-1], self.tables.progress
        counts = self._counts(stored, tables)
        failed: Errors = {}
        try:
            if rules := self.tables.rules:
                rules.begin({t: progress.of(t) for t in counts})
            failed = self._apply(last, counts)
            self._report(counts.keys() - failed.keys(), failed)
        except Exception:
            with suppress(Exception):  # the first error is the one to raise
                self.record.write(last, newest=False)
            self._forget()
            raise
        self.record.write(last, newest=newest)
        incomplete = failed.keys() | {t for t in counts if not progress.has(t, last.upto)}
        self.failed |= incomplete
        return set(tables) - incomplete

    def _counts(self, stored: Sequence[Stored], tables: Collection[str]) -> dict[str, dict[str, int]]:
        """Returns the bounds `ChangeBatch.counts` for each table that needs changes of the round."""
        counts: dict[str, dict[str, int]] = {}
        for batch in stored:
            for table in batch.tables.keys() & set(tables):
                if order_key(self.tables.progress.of(table)) < batch.upto:
                    total = counts.setdefault(table, dict.fromkeys(SPECIAL, 0))
                    for kind in SPECIAL:
                        total[kind] += batch.tables[table].get(kind, 0)
        return counts

    def _apply(self, last: Stored, counts: Mapping[str, Mapping[str, int]]) -> Errors:
        """Applies the tables: those that need one merge in one job, then the others in parallel. Returns the
        errors by table; they do not stop other tables."""
        done, failed = self._apply_together(last, counts)
        rest = sorted(counts.keys() - done.keys() - failed.keys())
        done |= {t: [] for t in rest}
        errors = self._apply_each(rest, last, counts, done)
        if rules := self.tables.rules:
            try:
                rules.flush()
            except BaseException:
                self._forget()  # the targets are ahead of the key log
                raise
        failed |= errors
        commits = [row for rows in done.values() for row in rows]
        self.done += commits
        self.record.note(commits)
        for table in failed:
            self.record.doubt(table)
        return failed

    def _apply_together(
        self, last: Stored, counts: Mapping[str, Mapping[str, int]]
    ) -> tuple[dict[str, list[AppliedTable]], Errors]:
        """Merges in one job the batches of all tables that need one merge. Returns the commits and errors."""
        batches: list[ChangeBatch] = []
        failed: Errors = {}
        for table in sorted(counts):
            try:
                if (batch := self.tables.plain_batch(table, last.upto, counts[table])) is not None:
                    batches.append(batch)
            except Exception as error:  # noqa: BLE001 - the scheduler is asked
                failed[table] = self.tables.explained(table, error)
        done: dict[str, list[AppliedTable]] = {}
        ranges = {batch.table: ChangeRange(batch.range.start, last.upto) for batch in batches}
        for table, result in self.tables.merger.run(batches).items():
            self.tables.progress.forget([table])
            if isinstance(result, TailraceError):
                failed[table] = self.tables.explained(table, result)
                continue
            done[table] = [applied(table, result, ranges[table])]
            if result.suspended is None:
                self.tables.progress.advance(table, last.upto)
        return done, failed

    def _apply_each(
        self,
        tables: Sequence[str],
        last: Stored,
        counts: Mapping[str, Mapping[str, int]],
        done: Mapping[str, list[AppliedTable]],
    ) -> Errors:
        """Applies tables that need more than one merge, in parallel. Returns their errors."""

        def apply(table: str) -> TailraceError | None:
            return self.tables.apply(table, last, counts[table], done[table])

        if min(self.parallel, len(tables)) <= 1:
            found = [apply(t) for t in tables]
        else:
            with thread_pool("apply", self.parallel) as pool:
                found = list(pool.map(apply, tables))
        return {t: error for t, error in zip(tables, found, strict=True) if error is not None}

    def _report(self, applied_tables: Collection[str], failed: Errors) -> None:
        """Reports the outcome of each table to the scheduler; raises the first error that ends the task."""
        scheduler = self.tables.scheduler
        for table in sorted(applied_tables):
            scheduler.applied(table)
        ends: TailraceError | None = None
        for table, error in sorted(failed.items()):
            try:
                scheduler.failed(table, error)
            except TailraceError as raised:
                if ends is not None:  # the next attempt raises it again
                    continue
                ends = raised
            if isinstance(error, LimitReachedError) and self.tables.rules:
                self.tables.rules.count_again(table)
        if ends is not None:
            raise ends

    def _forget(self) -> None:
        """Reads targets and key log again before the next round: they may have an unconfirmed commit."""
        self.tables.progress.forget()
        if rules := self.tables.rules:
            rules.forget()
