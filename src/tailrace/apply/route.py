"""Routes from source tables to their targets: the layouts of a table under the DDL policies, then its
mapping.

Each DDL is decided on once, before the first change with the new layout. The decision is recorded in
`ddl_decisions`, so after a restart the layout of the target is the same: it depends only on the layouts, the
decisions and the mapping. Apply ends before a DDL under `suspend` or `stop`: see `ddl.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..errors import ApplyError, BaselineNeededError, StopPolicyError
from ..lake import log
from ..model.change import ChangeTable, Relation
from ..model.positions import ChangeRange
from ..state import commands
from ..state import ddl as ddl_state
from ..state.baselines import Baseline
from ..state.layouts import layouts_seen
from ..state.open_warnings import PIPELINE, OpenWarnings, log_only
from ..targets.change_batch import ChangeBatch
from . import ddl
from .mapping.left_out import TO_HAVE_IT, LeftOutColumns, TargetLayout, stays_out
from .mapping.mapped import counts_of, mapped
from .mapping.prepare import Prepared, prepare
from .mapping.table_map import TableMap, task_map
from .mapping.value_errors import value_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config.task import Task


@dataclass(frozen=True)
class Route:
    """The route of the changes of one layout to their target.

    Attributes:
        before: the target's layout before these changes.
        relation: the target's layout for these changes.
        steps: the mappings that are applied to the changes, in order.
    """

    before: Relation
    relation: Relation
    steps: tuple[Prepared, ...] = ()

    @staticmethod
    def of(source: Relation, decided: Relation, mapping: Prepared | None, before: Relation) -> Route:
        """The route of changes in the layout `source`.

        Args:
            source: the layout of the changes.
            decided: the layout after the decisions on DDL.
            mapping: the mapping, if there is one.
            before: the target's layout before these changes.
        """
        steps = tuple(one for one in (ddl.projection(source, decided), mapping) if one is not None)
        return Route(before, decided if mapping is None else mapping.relation, steps)

    def through(
        self, changes: ChangeTable, counts: Mapping[str, int]
    ) -> tuple[ChangeTable, Mapping[str, int]]:
        """The changes in the target's layout, and the upper bounds of their numbers by kind.

        Raises:
            BaselineNeededError: the target of a keyless table has a column that the changes do not have, and
                rows are identified by all of their values.
        """
        absent = [p.column.name for step in self.steps for p in step.parts if p.absent]
        if absent and not self.relation.key and (counts.get("U") or counts.get("D")):
            raise BaselineNeededError(
                f"{absent[0]!r} stayed when a DDL was ignored, and the table has no key: rows that have a "
                "value there are not found",
                where=self.relation.table,
                hint="run `tailrace resync` (its baseline has the source's layout); let `ddl` apply `drop`",
            )
        for step in self.steps:
            changes, counts = mapped(changes, step, counts), counts_of(counts, step)
        return changes, counts


@dataclass(frozen=True)
class DdlStop:
    """A DDL before which apply ends.

    Attributes:
        table: the table.
        number: the number of the first change with the new layout.
        policy: `suspend` or `stop`.
        why: the differences, as a message.
        decisions: the decisions that are recorded when the table is suspended, for when it is resumed.
    """

    table: str
    number: int
    policy: str
    why: str
    decisions: tuple[tuple[ddl_state.Key, str], ...]


class Routes:
    """The routes of a task's tables. Any thread may call it.

    Args:
        spark: the session, which analyses mappings; None if no table has one.
        maps: returns the mapping of a source table.
        policies: returns the DDL policies of a table.
        decisions: path of `ddl_decisions`.
        commands_path: path of the task's commands.
        seen: returns the layouts that tables had (`layouts_seen`); only mappings with `drop` need them.
        record: whether decisions are recorded, and warnings written.
        archives: whether a table's target is an archive of changes, which has no rows to fill.
        warned: writes warnings, as `OpenWarnings.happened`.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        maps: Callable[[str], TableMap],
        policies: Callable[[str], Mapping[str, str]],
        decisions: str,
        commands_path: str,
        *,
        seen: Callable[[], Mapping[str, Sequence[tuple[str, Relation]]]] = dict,
        record: bool = True,
        archives: Callable[[str], bool] = lambda _: False,
        warned: Callable[[str, str, str, str], None] = log_only,
    ) -> None:
        self._warned = warned
        self._record, self._seen, self._archives = record, seen, archives
        self._spark, self._maps, self._policies = spark, maps, policies
        self._path, self._commands = decisions, commands_path
        self._deciding = threading.RLock()  # for `_decided`
        self._decided: dict[ddl_state.Key, str] | None = None
        self._prepared: dict[tuple[str, TargetLayout], Prepared] = {}
        self._warnings: set[tuple[str, str]] = set()

    @staticmethod
    def of(task: Task, spark: SparkSession | None, *, record: bool = True) -> Routes:
        """The routes of a task."""
        return Routes(
            spark,
            cache(lambda table: task_map(task, table)),
            lambda table: task.table(table).ddl,
            task.control_path("ddl_decisions"),
            task.commands_path,
            seen=lambda: layouts_seen(task.relations_path, task.control_path("baselines")),
            record=record,
            archives=lambda table: task.table(table).rule_mode == "archive",
            warned=OpenWarnings(task, PIPELINE).happened,
        )

    def map(self, table: str) -> TableMap:
        """The mapping of a source table."""
        return self._maps(table)

    def prepared(self, table: str, at: TargetLayout) -> Prepared | None:
        """The mapping for a layout; None if it changes nothing.

        Raises:
            ConfigError: the mapping does not fit the layout.
        """
        wanted = self._maps(table)
        if wanted.plain:
            return None
        if (table, at) not in self._prepared:
            self._prepared[table, at] = prepare(self._session, at.map(wanted), at.relation)
            self._warn(table, at)
        return self._prepared[table, at]

    def _warn(self, table: str, at: TargetLayout) -> None:
        for name, was in at.left_out:
            if self._record and (table, name) not in self._warnings:
                self._warnings.add((table, name))
                self._warned("left out", table, stays_out(name, was), TO_HAVE_IT % (name, name))

    def landed(self, baseline: Baseline) -> TargetLayout:
        """The layout of a baseline's rows."""
        return self._left_out(baseline.table, baseline.relation, baseline).at(baseline.relation)

    def _left_out(self, table: str, first: Relation, baseline: Baseline | None) -> LeftOutColumns:
        """The columns that the mapping leaves out of the first layout of a table's changes."""
        wanted = self._maps(table)
        seen = self._seen().get(table, ()) if wanted.drop and baseline else ()
        earlier = [one for position, one in seen if baseline and position < baseline.position]
        return LeftOutColumns.of(wanted, [*earlier, first])

    def _session(self) -> SparkSession:
        assert self._spark is not None  # noqa: S101 - see the class
        return self._spark

    def value_error(self, table: str, error: BaseException, *, where: str) -> ApplyError | None:
        """The error of a job for a table, if its mapping could not be computed from a row; otherwise None."""
        prepared = list(self._prepared.items())  # a copy: other threads add to it
        mappings = [one for (name, _), one in prepared if name == table]
        return value_error(error, mappings, table=table, where=where) if mappings else None

    def route(self, table: str, source: Relation, before: TargetLayout, after: TargetLayout) -> Route:
        """The route of changes in the layout `source`; `before` and `after`: from `Layouts`, before these
        changes and for them."""
        new, old = self.prepared(table, after), self.prepared(table, before)
        return Route.of(source, after.relation, new, old.relation if old else before.relation)

    def follow(
        self,
        table: str,
        batches: Sequence[ChangeBatch],
        history: Sequence[log.Layout],
        baseline: Baseline | None,
        numbers: ChangeRange,
    ) -> tuple[list[tuple[ChangeBatch, Route]], DdlStop | None]:
        """Returns the batches of a table's changes with their routes, and the DDL before which apply ends.

        `numbers`: the range of the batches.
        """
        found = self.layouts(table, history, baseline, numbers)
        end = found.stop.number if found.stop else None
        routes = [
            (one, self.route(table, one.relation, found.at(one.range.lower), found.at(one.range.end)))
            for one in batches
            if end is None or one.range.end < end
        ]
        return routes, found.stop

    def layouts(
        self, table: str, history: Sequence[log.Layout], baseline: Baseline | None, numbers: ChangeRange
    ) -> Layouts:
        """The layouts of a table's target in a range, which starts at the target's progress."""
        position = baseline.position if baseline else ""
        first = baseline.relation if baseline else history[0].relation
        stays = set() if self._archives(table) else {c.attnum for c in history[-1].relation.columns}
        coming = [
            one for one in history[0 if baseline else 1 :] if one.from_position.hex().upper() >= position
        ]
        source, target = first, first
        out = self._left_out(table, first, baseline)
        chain = [(-1, out.at(first))]
        for one in coming:
            number = log.number(one)
            if number > numbers.end:
                break
            before = out.at(target)
            out.add(one.relation)
            if one.relation.relid != source.relid:  # created again: a new baseline has its layout
                source = target = one.relation
                chain.append((number, out.at(target)))
                continue
            found = ddl.between(source, one.relation)
            with self._deciding:
                decided = self._decide(table, one, found, stays, before, out, applied=number <= numbers.lower)
            if isinstance(decided, DdlStop):
                return Layouts(tuple(chain), decided)
            target, source = ddl.followed(target, one.relation, decided), one.relation
            chain.append((number, out.at(target)))
        return Layouts(tuple(chain), None)

    def _decide(
        self,
        table: str,
        one: log.Layout,
        found: Sequence[ddl.Ddl],
        stays: Collection[int],
        before: TargetLayout,
        out: LeftOutColumns,
        *,
        applied: bool,
    ) -> list[tuple[ddl.Ddl, str]] | DdlStop:
        """The policies of the differences to the next layout, or the DDL before which apply ends."""
        if self._decided is None:
            self._decided = ddl_state.decisions(self._path)
        keys = {d: (table, one.from_seq, d.kind, d.attnum) for d in found}
        new = [d for d in found if keys[d] not in self._decided]
        if applied:  # a baseline has the layout, or it was applied without a decision
            return [(d, self._decided.get(keys[d], ddl.APPLY)) for d in found]
        policies, number = self._policies(table), log.number(one)
        now = ddl.decide(new, policies, stays)
        for policy in (ddl.STOP, ddl.SUSPEND):
            if stopping := [str(d) for d, p in now if p == policy]:
                record = tuple((keys[d], p) for d, p in now)
                return DdlStop(table, number, policy, "; ".join(stopping), record)
        known = {**self._decided, **{keys[d]: p for d, p in now}}
        decided = [(d, known[keys[d]]) for d in found]
        if self._reshapes(table, before, one.relation, out, decided):
            # None of it is applied yet, so the present policies count: they may ignore it.
            decided = now = ddl.decide(found, policies, stays)
            if self._reshapes(table, before, one.relation, out, decided):
                why = (
                    f"{'; '.join(map(str, found))}: that would change the columns of "
                    f"{self._maps(table).target}, which other sources may feed, too; let `ddl` ignore it "
                    f"(`tables: {{{table}: {{ddl: {{...: ignore}}}}}}`) and resume the table, or leave the "
                    "column out (`drop`) and resync every source of the target"
                )
                # Nothing is recorded: to resume the table is not to accept this DDL.
                return DdlStop(table, number, ddl.SUSPEND, why, ())
        self._record_decisions([(keys[d], p) for d, p in now])
        return decided

    def _reshapes(
        self,
        table: str,
        before: TargetLayout,
        source: Relation,
        out: LeftOutColumns,
        decided: Sequence[tuple[ddl.Ddl, str]],
    ) -> bool:
        """Whether a new layout changes the columns of a target that other sources may feed too."""
        if not self._maps(table).partition:
            return False
        after = out.at(ddl.followed(before.relation, source, decided))
        new, old = (self.prepared(table, one) for one in (after, before))
        return new is not None and old is not None and old.relation.columns != new.relation.columns

    def stop_before(self, stop: DdlStop) -> None:
        """Suspends the table of a DDL, or raises its error.

        Raises:
            StopPolicyError: the policy is `stop`.
        """
        if stop.policy == ddl.STOP:
            raise StopPolicyError(
                f"{stop.why}, and the policy for it is `stop`",
                where=f"{stop.table}, change number {stop.number}",
                hint="all changes before it are applied; set another policy (`ddl`) for that kind",
            )
        commands.suspend(self._commands, stop.table, stop.why, who="ddl")
        # To resume the table is to accept the DDL.
        self._record_decisions(stop.decisions)

    def _record_decisions(self, decided: Sequence[tuple[ddl_state.Key, str]]) -> None:
        """Records decisions."""
        with self._deciding:
            if self._record:
                ddl_state.record_decisions(self._path, decided)
            self._decided = (self._decided or {}) | dict(decided)


@dataclass(frozen=True)
class Layouts:
    """The layouts of a table's target, before its mapping.

    Attributes:
        chain: the layouts with the number of their first change, in order.
        stop: the DDL before which apply ends, if there is one.
    """

    chain: tuple[tuple[int, TargetLayout], ...]
    stop: DdlStop | None

    def at(self, number: int) -> TargetLayout:
        """The layout in force at a change number."""
        return next(r for n, r in reversed(self.chain) if n <= number)
