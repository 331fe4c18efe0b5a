"""Renames targets of tables that were renamed at the source, if their policy says so.

Everything else about a table stays under its known name: change table, progress, key log, commands, settings.
The *target's name* follows from its commands, so the capture process renames it in three steps. A command
`rename` stops apply from writing to the table. Once apply has confirmed, the target is renamed atomically. A
command `renamed` has its new name. After a crash there is a command `rename`, and the target has one of the
two names; if it has the new one, it has been renamed.

A name is used only if no other target of the task has it, and no object of that name exists. A name that is
about to become free is waited for. Tables that exchange names use an unused name in between.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..apply.ddl import IGNORE
from ..config.task import Task
from ..errors import ApplyError, NameTakenError
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..state import commands, ddl, lifecycle
from ..state.baselines import baseline_numbers
from ..state.lifecycle import TableStates
from ..targets.rename import mover

logger = logging.getLogger("tailrace.ddl")
KIND = "rename_table"


@dataclass(frozen=True)
class TargetNames:
    """Names of targets.

    Attributes:
        now: current names by table.
        wanted: names they should get, by table; without tables whose targets already have theirs.
    """

    now: Mapping[str, str]
    wanted: Mapping[str, str]

    def holder(self, table: str, name: str) -> str | None:
        """Returns the other table whose target has a name."""
        return next((t for t, n in self.now.items() if n == name and t != table), None)

    def circle(self, table: str) -> bool:
        """Returns whether the target waits, via others, for its own name to become free."""
        one = table
        for _ in self.wanted:
            if one not in self.wanted or (other := self.holder(one, self.wanted[one])) is None:
                return False
            if other == table:
                return True
            one = other
        return False


class TargetRenames:
    """Renames the targets of a task in the capture process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._versions: tuple[int | None, ...] = ()
        self._failed: dict[str, str] = {}  # what was already logged

    def continue_all(self, task: Task, busy: Collection[str] = ()) -> None:
        """Renames the targets that should and can be renamed, one after the other.

        If a target does not answer, it is tried again at the next call.

        Args:
            task: the task, as its file is now.
            busy: tables whose baseline is being read.
        """
        self._task = task
        paths = [task.control_path(n) for n in ("ddl_events", "ddl_decisions", "commands")]
        while lake.exists(paths[0]):
            if (versions := tuple(map(lake.version, paths))) == self._versions:
                return
            states, places = self._read()
            if not any(self._try(t, states, places, busy) for t in sorted(places.wanted)):
                # Tables that wait for apply, or for a baseline, are checked again.
                self._versions = () if places.wanted else versions
                return

    def _read(self) -> tuple[TableStates, TargetNames]:
        task = self._task
        states = lifecycle.read(task)
        made = ddl.decisions(task.control_path("ddl_decisions"))
        names = ddl.wanted_names(ddl.events(task.control_path("ddl_events")), made)
        known = {*baseline_numbers(task.control_path("baselines")), *states, *names}
        now = {t: target_name(task, t, states) for t in known if not states[t].gone}
        wanted = {t: name for t, name in names.items() if name != now.get(t, name) and self._follows(t, now)}
        # A rename that has begun is finished first: the target may have its new name already.
        wanted |= {t: one.moving for t, one in states.items() if one.moving}
        return states, TargetNames(now, wanted)

    def _follows(self, table: str, now: Mapping[str, str]) -> bool:
        """Returns whether the target follows its table's name: no mapping names it, and no other table feeds
        it."""
        said = self._task.table(table)
        alone = TargetNames(now, {}).holder(table, now[table]) is None
        return alone and not said.target and said.ddl.get(KIND) != IGNORE

    def _try(self, table: str, states: TableStates, places: TargetNames, busy: Collection[str]) -> bool:
        try:
            return self._one(table, states, places, busy)
        except ApplyError as error:
            if self._failed.get(table) != str(error):
                logger.warning(
                    "the target of %s waits for its new name: %s", table, error, extra={"table": table}
                )
            self._failed[table] = str(error)
            return False

    def _one(self, table: str, states: TableStates, places: TargetNames, busy: Collection[str]) -> bool:
        """Takes the next step for a table; returns whether there was one."""
        state, to, task = states[table], places.wanted[table], self._task
        stays = bool(state.held) or state.removed
        if state.held == lifecycle.SUSPENDED or (stays and not state.moving) or table in busy:
            return False
        if state.moving and not commands.heard(task.run_path, state.move):
            return False
        if (other := places.holder(table, to)) is not None:
            if not places.circle(table):
                return self._wait(table, to, other, states, places)
            to = f"{table.partition('.')[0]}.tailrace_rename_{zlib.crc32(table.encode()):08x}"
        return self._step(table, places.now.get(table, to), to, begun=state.moving == to)

    def _step(self, table: str, now: str, to: str, *, begun: bool) -> bool:
        """Commands or executes a rename; suspends the table and returns False if the name is in use."""
        where = mover(self._task)
        if not begun and where.is_taken(to) and not where.same(now, to):
            self._suspend(table, to, "something that is not a target of this task has that name")
            return False
        if not begun:
            self._order(commands.RENAME, table, to)
            return True
        reach("rename.target")
        try:
            where.move(table, now, to)
        except NameTakenError as error:
            self._suspend(table, to, error.what)
            return False
        reach("rename.moved")
        self._order(commands.RENAMED, table, to)
        logger.warning("the target of %s is now called %s", table, to, extra={"table": table})
        return True

    def _wait(self, table: str, to: str, other: str, states: TableStates, places: TargetNames) -> bool:
        """Suspends the table, unless the name is about to become free."""
        holder = states[other]
        if not holder.dropped and (other not in places.wanted or holder.held):
            self._suspend(table, to, f"the target of {other} has that name")
        return False

    def _order(self, action: str, table: str, to: str) -> None:
        why = f"the table was renamed at the source; its target: {to}"
        commands.give(self._task.commands_path, action, [table], why=why, who="ddl", target=to)

    def _suspend(self, table: str, to: str, why: str) -> None:
        said = (
            f"it was renamed at the source, and its target cannot be renamed to {to}: {why}; free the name "
            f"and resume the table, or set `ddl: {{{KIND}: ignore}}` for it"
        )
        commands.suspend(self._task.commands_path, table, said, who="ddl")


def target_name(task: Task, table: str, states: TableStates) -> str:
    """Returns the name of a table's target."""
    return states[table].target or task.table(table).target or table
