"""One slice: its tables side by side, then the outcome of each, and the record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import LimitReachedError, TailraceError
from ..execution import thread_pool
from ..state.ledger import AppliedTable, Stored
from ..targets.change_batch import TaskBatch
from ..targets.plans import SPECIAL
from .apply_record import Record
from .apply_result import applied
from .merger import TaskBatches
from .table_round import TableApply, is_plain

Failed = dict[str, TailraceError]


@dataclass
class SliceApply:
    """Applies slices, `parallel` tables at a time.

    `done`, `failed`: what was committed, and which tables did not get all of a
    slice, since the caller emptied them.
    """

    tables: TableApply
    task_batches: TaskBatches
    record: Record
    parallel: int
    done: list[AppliedTable] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)

    def apply(self, batches: Sequence[Stored], tables: Collection[str], *, ends: bool) -> set[str]:
        """Applies a slice to tables that lack nothing from before it, and whose progress is known; gives
        those that have all of it then.

        What the store has counted in the slice bounds what these tables get, and only these. `ends`: as
        `Record.write`.

        Raises:
            TailraceError: that of a table, and it ends the task. What was committed is recorded.
            OvertakenError: targets have changes that the key log lacks; nothing is recorded.
        """
        last = batches[-1]
        counts = self._counts(batches, tables)
        failed: Failed = {}
        try:
            if rules := self.tables.rules:
                rules.begin({t: self.tables.reach.of(t) for t in counts})
            failed = self._apply(last, counts)
            self._ask_gate(counts.keys() - failed.keys(), failed)
        except Exception:
            with suppress(Exception):  # what is raised is why the slice has ended
                self.record.write(last, ends=False)
            self._look_anew()
            raise
        self.record.write(last, ends=ends)
        short = failed.keys() | {t for t in counts if not self.tables.reach.has(t, last.upto)}
        self.failed |= short
        return set(tables) - short

    def _look_anew(self) -> None:
        """Has targets and key log looked at as after a start: an unconfirmed commit may be there."""
        self.tables.reach.forget()
        if rules := self.tables.rules:
            rules.again()

    def _counts(self, batches: Sequence[Stored], tables: Collection[str]) -> dict[str, dict[str, int]]:
        """What the store has counted in a slice, by table that lacks some of it."""
        counts: dict[str, dict[str, int]] = {}
        for batch in batches:
            for table in batch.tables.keys() & set(tables):
                if batch.upto > self.tables.reach.of(table):
                    total = counts.setdefault(table, dict.fromkeys(SPECIAL, 0))
                    for k in SPECIAL:
                        total[k] += batch.tables[table].get(k, 0)
        return counts

    def _apply(self, last: Stored, counts: Mapping[str, Mapping[str, int]]) -> Failed:
        """Applies the tables. Whatever one of them meets, the others end, and what was done is logged; gives
        what failed."""
        done, failed = self._together(last, counts)
        rest = sorted(counts.keys() - done.keys() - failed.keys())
        done |= {t: [] for t in rest}

        def one(table: str) -> TailraceError | None:
            return self.tables.apply(table, last, counts[table], done[table])

        found = dict(zip(rest, self._side_by_side(one, rest), strict=True))
        if rules := self.tables.rules:
            try:
                rules.flush()
            except BaseException:
                self._look_anew()  # the key log is behind its targets
                raise
        failed |= {t: error for t, error in found.items() if error is not None}
        flat = [one for many in done.values() for one in many]
        self.done += flat
        self.record.note(flat)
        for table in failed:
            self.record.doubt(table)
        return failed

    def _side_by_side(
        self, one: Callable[[str], TailraceError | None], tables: Sequence[str]
    ) -> list[TailraceError | None]:
        if min(self.parallel, len(tables)) <= 1:
            return [one(t) for t in tables]
        with thread_pool("apply", self.parallel) as pool:
            return list(pool.map(one, tables))

    def _together(
        self, last: Stored, counts: Mapping[str, Mapping[str, int]]
    ) -> tuple[dict[str, list[AppliedTable]], Failed]:
        """Applies in one job the batches of tables whose changes have one layout; what was done, what
        failed."""
        todo: list[TaskBatch] = []
        failed: Failed = {}
        for table in sorted(counts):
            try:
                if (one := self._task_batch(table, last.upto, counts[table])) is not None:
                    todo.append(one)
            except Exception as error:  # noqa: BLE001 - the gate is asked
                failed[table] = self.tables.explained(table, error)
        done: dict[str, list[AppliedTable]] = {}
        begins = {one.table: one.after for one in todo}
        for table, made in self.task_batches.run(todo).items():
            self.tables.reach.forget([table])
            if isinstance(made, TailraceError):
                failed[table] = self.tables.explained(table, made)
                continue
            done[table] = [applied(table, made, begins[table], last.upto)]
            if made.suspended is None:
                self.tables.reach.came(table, last)
        return done, failed

    def _task_batch(self, table: str, upto: int, counts: Mapping[str, int]) -> TaskBatch | None:
        routes, halt = self.tables.routed(table, upto)
        made = self.tables.reach.of(table) >= 0 or self.tables.target.exists(table)
        if halt is not None or not is_plain(routes) or not made:
            return None
        ((segment, route),) = routes
        return self.task_batches.of(table, segment, route, counts, self.tables.known.baselines.get(table))

    def _ask_gate(self, went: Collection[str], failed: Failed) -> None:
        """Tells the gate the outcome of each table; raises the first error that ends the task."""
        for table in sorted(went):
            self.tables.gate.went(table)
        ends: TailraceError | None = None
        for table, error in sorted(failed.items()):
            try:
                self.tables.gate.failed(table, error)
            except TailraceError as raised:
                if ends is not None:  # nobody is told of it: it comes again
                    continue
                ends = raised
            if isinstance(error, LimitReachedError) and self.tables.rules:
                self.tables.rules.count_anew(table)
        if ends is not None:
            raise ends
