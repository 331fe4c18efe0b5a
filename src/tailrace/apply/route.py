"""From a source table to its target: its layouts as DDL policies leave them, then the mapping.

A layout that came with a DDL is decided on once, before the first change under it; the decision is kept in
`ddl_decisions`, so the target's layout follows from the layouts, the decisions and the mapping alone, after
any restart. A DDL under `suspend` or `stop` ends the stretch that is applied: see `ddl.py`.
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
from ..state import ddl as kept
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
    """How the changes of one layout come to their target.

    Attributes:
        before, relation: the target's layout before these changes, and with them.
        steps: what changes go through, in order.
    """

    before: Relation
    relation: Relation
    steps: tuple[Prepared, ...] = ()

    @staticmethod
    def of(source: Relation, follows: Relation, made: Prepared | None, before: Relation) -> Route:
        """The route of changes in the layout `source` to a target that follows another one, with its mapping,
        and has the layout `before`."""
        first = ddl.projection(source, follows)
        steps = tuple(one for one in (first, made) if one is not None)
        return Route(before, follows if made is None else made.relation, steps)

    def through(
        self, changes: ChangeTable, counts: Mapping[str, int]
    ) -> tuple[ChangeTable, Mapping[str, int]]:
        """The changes as the target's, and upper bounds of what occurs in them.

        Raises:
            BaselineNeededError: without a key rows are known by all of their values, and the target has a
                column that the changes have not.
        """
        kept = [p.column.name for step in self.steps for p in step.parts if p.absent]
        if kept and not self.relation.key and (counts.get("U") or counts.get("D")):
            raise BaselineNeededError(
                f"{kept[0]!r} was kept when a DDL was ignored, and the table has no key: rows that have a "
                "value there are not found",
                where=self.relation.table,
                hint="`tailrace resync` it (it begins with the source's layout), and let `ddl` apply `drop`",
            )
        for step in self.steps:
            changes, counts = mapped(changes, step, counts), counts_of(counts, step)
        return changes, counts


@dataclass(frozen=True)
class Halt:
    """A DDL before which apply ends: the change number where its layout begins, its policy, what it is."""

    table: str
    number: int
    policy: str
    why: str
    decisions: tuple[tuple[kept.Key, str], ...]


class Routes:
    """The routes of a task's tables. Any thread may call it.

    Args:
        spark: the session, which analyses mappings; None: no table that is asked about has one.
        maps: the mapping of each source table.
        policies: the DDL policies of each.
        decisions: path of `ddl_decisions`.
        orders: the task's orders.
        seen: the layouts that tables had (`layouts_seen`); only mappings with `drop` ask for them.
        archives: whether a table's target is an archive of changes: it has no rows that a new column fills.
        record: False for who only looks: nothing is kept of what is decided on the way, and nothing said.
        warned: is given warnings, as `OpenWarnings.happened`.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        maps: Callable[[str], TableMap],
        policies: Callable[[str], Mapping[str, str]],
        decisions: str,
        orders: str,
        *,
        seen: Callable[[], Mapping[str, Sequence[tuple[str, Relation]]]] = dict,
        record: bool = True,
        archives: Callable[[str], bool] = lambda _: False,
        warned: Callable[[str, str, str, str], None] = log_only,
    ) -> None:
        self._warned = warned
        self._record, self._seen, self._archives = record, seen, archives
        self._spark, self._maps, self._policies = spark, maps, policies
        self._path, self._orders = decisions, orders
        self._deciding = threading.RLock()  # of `_decided`: nothing is kept while it is read
        self._decided: dict[kept.Key, str] | None = None
        self._prepared: dict[tuple[str, TargetLayout], Prepared] = {}
        self._told: set[tuple[str, str]] = set()

    @staticmethod
    def of(task: Task, spark: SparkSession | None, *, record: bool = True) -> Routes:
        """A task's."""
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
        """The mapping for a layout; None when it changes nothing.

        Raises:
            ConfigError: it does not fit the layout.
        """
        wanted = self._maps(table)
        if wanted.plain:
            return None
        if (table, at) not in self._prepared:
            self._prepared[table, at] = prepare(self._session, at.map(wanted), at.relation)
            self._tell(table, at)
        return self._prepared[table, at]

    def _tell(self, table: str, at: TargetLayout) -> None:
        for name, was in at.left_out:
            if self._record and (table, name) not in self._told:
                self._told.add((table, name))
                self._warned("left out", table, stays_out(name, was), TO_HAVE_IT % (name, name))

    def landed(self, baseline: Baseline) -> TargetLayout:
        """The layout of a baseline's rows."""
        return self._left_out(baseline.table, baseline.relation, baseline).at(baseline.relation)

    def _left_out(self, table: str, first: Relation, baseline: Baseline | None) -> LeftOutColumns:
        """What the mapping leaves out of the first layout that a table's changes are applied to."""
        wanted = self._maps(table)
        seen = self._seen().get(table, ()) if wanted.drop and baseline else ()
        earlier = [one for position, one in seen if baseline and position < baseline.position]
        return LeftOutColumns.of(wanted, [*earlier, first])

    def _session(self) -> SparkSession:
        assert self._spark is not None  # noqa: S101 - see the class
        return self._spark

    def value_error(self, table: str, error: BaseException, *, where: str) -> ApplyError | None:
        """What a job for a table died of, when it was a value that its mapping cannot take."""
        there = list(self._prepared.items())  # other threads add to it
        made = [one for (name, _), one in there if name == table]
        return value_error(error, made, table=table, where=where) if made else None

    def route(self, table: str, source: Relation, before: TargetLayout, after: TargetLayout) -> Route:
        """The route of changes in the layout `source`, when the target follows the layouts `before` and now
        `after` (from `Layouts`)."""
        made, was = self.prepared(table, after), self.prepared(table, before)
        return Route.of(source, after.relation, made, was.relation if was else before.relation)

    def follow(
        self,
        table: str,
        batches: Sequence[ChangeBatch],
        history: Sequence[log.Layout],
        baseline: Baseline | None,
        numbers: ChangeRange,
    ) -> tuple[list[tuple[ChangeBatch, Route]], Halt | None]:
        """Returns the batches of a table's changes with their routes, up to a DDL before which apply stops.
        `numbers`: the range of the batches."""
        found = self.layouts(table, history, baseline, numbers)
        end = found.halt.number if found.halt else None
        routes = [
            (one, self.route(table, one.relation, found.at(one.range.lower), found.at(one.range.end)))
            for one in batches
            if end is None or one.range.end < end
        ]
        return routes, found.halt

    def layouts(
        self, table: str, history: Sequence[log.Layout], baseline: Baseline | None, numbers: ChangeRange
    ) -> Layouts:
        """The layouts of a table's target for its changes up to the end of a range, whose start is its
        progress."""
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
            out.see(one.relation)
            if one.relation.relid != source.relid:  # made again: a new baseline begins with its layout
                source = target = one.relation
                chain.append((number, out.at(target)))
                continue
            found = ddl.between(source, one.relation)
            with self._deciding:
                made = self._decide(table, one, found, stays, before, out, applied=number <= numbers.lower)
            if isinstance(made, Halt):
                return Layouts(tuple(chain), made)
            target, source = ddl.followed(target, one.relation, made), one.relation
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
    ) -> list[tuple[ddl.Ddl, str]] | Halt:
        if self._decided is None:
            self._decided = kept.decisions(self._path)
        keys = {d: (table, one.from_seq, d.kind, d.attnum) for d in found}
        new = [d for d in found if keys[d] not in self._decided]
        if applied:  # from before there were decisions
            return [(d, self._decided.get(keys[d], ddl.APPLY)) for d in found]
        policies, number = self._policies(table), log.number(one)
        now = ddl.decide(new, policies, stays)
        for policy in (ddl.STOP, ddl.SUSPEND):
            if said := [str(d) for d, p in now if p == policy]:
                record = tuple((keys[d], p) for d, p in now)
                return Halt(table, number, policy, "; ".join(said), record)
        known = {**self._decided, **{keys[d]: p for d, p in now}}
        made = [(d, known[keys[d]]) for d in found]
        if self._reshapes(table, before, one.relation, out, made):
            # Nothing of it is done yet: it may be ignored by now.
            made = now = ddl.decide(found, policies, stays)
            if self._reshapes(table, before, one.relation, out, made):
                why = (
                    f"{'; '.join(map(str, found))}: that would change the columns of "
                    f"{self._maps(table).target}, which other sources may feed, too; let `ddl` ignore it "
                    f"(`tables: {{{table}: {{ddl: {{...: ignore}}}}}}`) and resume the table, or leave the "
                    "column out (`drop`) and resync every source of the target"
                )
                # Nothing is recorded: whoever resumes the table does not accept it.
                return Halt(table, number, ddl.SUSPEND, why, ())
        self.keep([(keys[d], p) for d, p in now])
        return made

    def _reshapes(
        self,
        table: str,
        before: TargetLayout,
        source: Relation,
        out: LeftOutColumns,
        decided: Sequence[tuple[ddl.Ddl, str]],
    ) -> bool:
        """Whether a source's new layout changes the columns of a target that other sources may feed, too."""
        if not self._maps(table).partition:
            return False
        after = out.at(ddl.followed(before.relation, source, decided))
        made, was = (self.prepared(table, one) for one in (after, before))
        return made is not None and was is not None and was.relation.columns != made.relation.columns

    def carry_out(self, halt: Halt) -> None:
        """Suspends the table, or stops.

        Raises:
            StopPolicyError: the policy is `stop`.
        """
        if halt.policy == ddl.STOP:
            raise StopPolicyError(
                f"{halt.why}, and the policy for it is `stop`",
                where=f"{halt.table}, change number {halt.number}",
                hint="all changes before it are applied; set another policy (`ddl`) for that kind",
            )
        commands.suspend(self._orders, halt.table, halt.why, who="ddl")
        # Whoever resumes the table accepts it.
        self.keep(halt.decisions)

    def keep(self, made: Sequence[tuple[kept.Key, str]]) -> None:
        """Records decisions."""
        with self._deciding:
            if self._record:
                kept.record_decisions(self._path, made)
            self._decided = (self._decided or {}) | dict(made)


@dataclass(frozen=True)
class Layouts:
    """Target-side layouts of a table by the change number they hold from, ascending; and where it ends."""

    chain: tuple[tuple[int, TargetLayout], ...]
    halt: Halt | None

    def at(self, number: int) -> TargetLayout:
        """The layout in force at a change number."""
        return next(r for n, r in reversed(self.chain) if n <= number)
