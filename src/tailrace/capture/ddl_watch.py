"""Detects DDL without a log record: tables that were dropped, renamed or recreated, as the catalog shows.

Capture checks the catalog once a second and at each start. A finding is stored as an event in
`ddl_events` once LOG has reached the position of the check. So all changes from before the DDL have smaller
change sequences. Its policy is applied once those changes are applied, and that is stored in `ddl_decisions`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ..apply.ddl import APPLY, DEFAULTS, IGNORE, STOP, SUSPEND
from ..config.task import Task
from ..errors import SourceError
from ..lake import delta as lake
from ..lake import log
from ..model import sequence
from ..sources.base import LogSource
from ..state import commands, ddl, ledger, lifecycle
from ..state.baselines import Baseline, read_baselines
from ..state.progress import Progress
from . import ddl_history
from .table_selection import MovedTables, current_names, find_moved, newest_relations

logger = logging.getLogger("tailrace.ddl")
DESCRIPTIONS = {
    "drop_table": "the table was dropped at the source",
    "rename_table": "the table was renamed at the source, to {new_name}",
    "recreate_table": "the table was dropped and created again at the source",
}


class DdlWatch:
    """Watches a task's tables in the catalog of its source."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._versions: tuple[int | None, ...] = ()
        self._baselines: dict[str, Baseline] = {}
        self._history: dict[str, list[log.Layout]] = {}
        self._events: list[ddl.CatalogEvent] = []
        self._done: list[ddl.CatalogEvent] = []
        self._coming: dict[tuple[str, int, str], tuple[ddl.CatalogEvent, bytes]] = {}

    def follow(self, task: Task) -> None:
        """Uses the current task file."""
        self._task = task

    def moved(self, source: LogSource) -> MovedTables:
        """Returns which known tables were dropped or renamed; from then on the source uses their
        known names."""
        self._refresh()
        return find_moved(
            source, self._history, self._baselines, lambda t: recreate_policy(self._task, t) == IGNORE
        )

    def check(self, source: LogSource, state: log.LogState, *, waiting: bool = False) -> None:
        """Detects DDL of known tables, and stores its events once LOG has reached them.

        Args:
            waiting: whether transactions that were read are not yet in LOG.
        """
        self._refresh()
        new = self._news(source)
        if new is None:
            return
        for event in new:
            if (event.table, event.relid, event.kind) not in self._coming:
                self._coming[event.table, event.relid, event.kind] = event, source.end_position()
        reached = state.position if waiting else source.reached()
        ready = [key for key, (_, at) in self._coming.items() if reached is not None and reached >= at]
        seq = sequence.make(state.time, state.number)
        if ready:
            new = [
                ddl.CatalogEvent(**(vars(self._coming.pop(key)[0]) | {"change_seq": seq})) for key in ready
            ]
            ddl.record_events(self._task.control_path("ddl_events"), new)
            for one in new:
                logger.warning("%s: %s", one.table, describe(one), extra={"table": one.table})
        self.apply_policies()

    def _news(self, source: LogSource) -> list[ddl.CatalogEvent] | None:
        """Returns the events that the catalog shows and that are not stored yet; None if the source has no
        catalog."""
        relids = newest_relations(self._history, self._baselines)
        found = current_names(source, list(relids.values()))
        if found is None:
            return None
        now, there = found
        taken = there - set(now.values())  # under names that the task does not know
        events = (self._event(table, relid, now.get(relid), taken) for table, relid in relids.items())
        return [one for one in events if one is not None]

    def recreated_tables(self, source: LogSource) -> set[str]:
        """Returns the recreated tables whose policy is still to be applied; their event is stored, or about
        to be."""
        self._refresh()
        relids = newest_relations(self._history, self._baselines)
        events = [one for one in self._events if one not in self._done]
        events += [one for one, _ in self._coming.values()] + (self._news(source) or [])
        return {
            one.table for one in events if one.kind == "recreate_table" and relids.get(one.table) == one.relid
        }

    def apply_policies(self) -> None:
        """Applies the policies of events that have not been handled yet.

        Raises:
            SourceError: a policy is `stop`.
        """
        self._refresh()
        if all(one in self._done for one in self._events):
            return
        task = self._task
        path = task.control_path("ddl_decisions")
        done = ddl.decisions(path)
        applied = Progress.read(task.control_path("applied"), ledger.APPLIED_APP).number or 0
        states = lifecycle.read(task)
        removed = states.removed
        for one, key in ddl.keyed(self._events):
            if one in self._done:
                continue
            if key in done:
                self._done.append(one)
                continue
            if applied < sequence.number_of(one.change_seq):
                continue
            policy = self._policy(one, one.table in removed)
            if policy is None:
                continue
            if one.table not in removed:
                self._order(one, policy)
            elif (state := states[one.table]).who == "ddl" and not (state.dropped or state.gone):
                self._drop(one, policy)  # the process was killed between the two commands
            ddl.record_decisions(path, [(key, policy)])

    def _policy(self, one: ddl.CatalogEvent, removed: bool) -> str | None:
        """Returns the policy for an event of a table, which may have been removed; None if that is not known
        yet.

        Raises:
            SourceError: it is `stop`.
        """
        policy = self._task.table(one.table).ddl.get(one.kind, DEFAULTS[one.kind])
        if one.kind == "recreate_table":  # capture handles the new table
            policy = recreate_policy(self._task, one.table)
        if removed:
            return IGNORE if policy == STOP else policy
        superseded = self._superseded(one)
        if superseded is None:
            return None
        if superseded:
            logger.info("%s: %s, and another one has its name: ignored", one.table, describe(one))
            return IGNORE
        if policy == STOP:
            raise SourceError(
                f"{describe(one)}, and its policy is `stop`",
                where=one.table,
                hint=f"set another policy, `ddl: {{{one.kind}: ...}}`, or remove the table from the task",
            )
        return policy

    def _superseded(self, one: ddl.CatalogEvent) -> bool | None:
        """Returns whether a dropped table's name and target belong to a later table now.

        None if that is about to be recorded; a drop that arrives later is noticed only then.
        """
        if one.kind != "drop_table":
            return False
        taken = self._baselines.get(one.table)
        if taken is not None and taken.relation.relid != one.relid:
            return True
        if self._known(one.table, one.relid)[-1].kind == "recreate_table":
            return True
        return None if (one.table, one.relid, "recreate_table") in self._coming else False

    def _known(self, table: str, relid: int) -> list[ddl.CatalogEvent]:
        """Returns the stored events of a relation, in order."""
        return [one for one in self._events if one.table == table and one.relid == relid]

    def _order(self, one: ddl.CatalogEvent, policy: str) -> None:
        orders, why = self._task.commands_path, describe(one)
        if one.kind == "recreate_table":
            return
        if policy == SUSPEND:
            commands.suspend(orders, one.table, why, who="ddl")
        elif policy == APPLY and one.kind == "drop_table":
            commands.give(orders, commands.REMOVE, [one.table], why=why, who="ddl")
            self._drop(one, policy)

    def _drop(self, one: ddl.CatalogEvent, policy: str) -> None:
        """Gives the command to remove the target of a dropped table."""
        if policy == APPLY and one.kind == "drop_table":
            orders = self._task.commands_path
            commands.give(orders, commands.DROP, [one.table], why=describe(one), who="ddl")

    def _event(
        self, table: str, relid: int, name: str | None, taken: Collection[str]
    ) -> ddl.CatalogEvent | None:
        """Returns the event of a table, if it is not stored yet."""
        known = self._known(table, relid)
        last, seq = known[-1].kind if known else "", sequence.FIRST  # its own once LOG has caught up
        if name != table and table in taken:  # another table has its name
            again = ddl.CatalogEvent(table, relid, "recreate_table", seq, name)
            return None if last == "recreate_table" else again
        if name is None:
            return None if last == "drop_table" else ddl.CatalogEvent(table, relid, "drop_table", seq)
        called = known[-1].new_name if last == "rename_table" else table
        return None if name == called else ddl.CatalogEvent(table, relid, "rename_table", seq, name)

    def _refresh(self) -> None:
        task = self._task
        events = task.control_path("ddl_events")
        baselines = task.control_path("baselines")
        versions = tuple(lake.version(p) for p in (task.relations_path, events, baselines))
        if versions == self._versions:
            return
        self._history, self._events = log.history(task.relations_path), ddl.events(events)
        self._baselines = read_baselines(baselines)
        ddl_history.write_missing(task.control_path("ddl_history"), task.name, self._history, self._events)
        self._versions = versions


def moved_tables(task: Task, source: LogSource) -> MovedTables:
    """Returns which tables of a task were dropped or renamed, for a process that does not capture."""
    history = log.history(task.relations_path)
    baselines = read_baselines(task.control_path("baselines"))
    return find_moved(source, history, baselines, lambda t: recreate_policy(task, t) == IGNORE)


def recreate_policy(task: Task, table: str) -> str:
    """Returns the policy for a recreated table; by default a new baseline if the group has
    `automatic_baseline`."""
    given = task.table(table).ddl.get("recreate_table")
    return given or (APPLY if task.automatic_baseline(table) else SUSPEND)


def rewrite_policy(task: Task, table: str) -> str:
    """Returns the policy for a table whose values changed without a record in the log: that for a type whose
    values cannot be converted."""
    given = task.table(table).ddl.get("retype", APPLY)
    return SUSPEND if given == APPLY and not task.automatic_baseline(table) else given


def describe(one: ddl.CatalogEvent) -> str:
    """Returns an event as text.

    >>> describe(ddl.CatalogEvent("s.t", 7, "rename_table", "", "s.u"))
    'the table was renamed at the source, to s.u'
    """
    return DESCRIPTIONS[one.kind].format(new_name=one.new_name)
