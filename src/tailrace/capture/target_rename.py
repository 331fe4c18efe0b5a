"""Renames targets of tables that were renamed at the source, if their policy says so.

Everything else about a table stays under the name it is known by: change table, progress, key log, orders,
settings. Its *target's name* is what its orders say (`state/commands.py`), so it moves in three steps, by
the process that captures: an order `rename` makes apply leave the table alone; once apply has heard, the
target is moved, at once or not at all; an order `renamed` says where it is. A crash leaves an order `rename`,
and the target under the one name or the other: what is under the new one has been moved.

A name is taken only when no other target of the task has it, and nothing is there. One that is about to be
left is waited for; tables that exchange names go by way of a name that nobody has.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..apply.ddl import IGNORE
from ..apply.targets.rename import mover
from ..config.task import Task
from ..errors import ApplyError, NameTakenError
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..state import commands, ddl, lifecycle
from ..state.baselines import baseline_numbers
from ..state.lifecycle import TableStates

logger = logging.getLogger("tailrace.ddl")
KIND = "rename_table"


@dataclass(frozen=True)
class Places:
    """The current names of targets (`now`, by table), and the names they should get (`wanted`; without
    tables whose targets have theirs)."""

    now: Mapping[str, str]
    wanted: Mapping[str, str]

    def holder(self, table: str, name: str) -> str | None:
        """The other table whose target has a name."""
        return next((t for t, n in self.now.items() if n == name and t != table), None)

    def circle(self, table: str) -> bool:
        """Whether the target waits, via others, for its own name to become free."""
        one = table
        for _ in self.wanted:
            if one not in self.wanted or (other := self.holder(one, self.wanted[one])) is None:
                return False
            if other == table:
                return True
            one = other
        return False


class Renaming:
    """Renames the targets of a task as needed. For the capture process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._versions: tuple[int, ...] = ()
        self._failed: dict[str, str] = {}  # what was already logged

    def carry_on(self, task: Task, busy: Collection[str] = ()) -> None:
        """Renames the targets that should and can be renamed, one after the other. What is not possible now
        (a target that does not answer) is tried again at the next call.

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

    def _read(self) -> tuple[TableStates, Places]:
        task = self._task
        states = lifecycle.read(task)
        made = ddl.decisions(task.control_path("ddl_decisions"))
        names = ddl.wanted_names(ddl.events(task.control_path("ddl_events")), made)
        known = {*baseline_numbers(task.control_path("baselines")), *states, *names}
        now = {t: target_name(task, t, states) for t in known if not states[t].gone}
        wanted = {t: name for t, name in names.items() if name != now.get(t, name) and self._follows(t, now)}
        # A move that has begun is finished first: the target may have its new name already.
        wanted |= {t: one.moving for t, one in states.items() if one.moving}
        return states, Places(now, wanted)

    def _follows(self, table: str, now: Mapping[str, str]) -> bool:
        """Whether the target has its table's name: no mapping names it, and no other table feeds it."""
        said = self._task.table(table)
        alone = Places(now, {}).holder(table, now[table]) is None
        return alone and not said.target and said.ddl.get(KIND) != IGNORE

    def _try(self, table: str, states: TableStates, places: Places, busy: Collection[str]) -> bool:
        try:
            return self._one(table, states, places, busy)
        except ApplyError as error:
            if self._failed.get(table) != str(error):
                logger.warning(
                    "the target of %s waits for its new name: %s", table, error, extra={"table": table}
                )
            self._failed[table] = str(error)
            return False

    def _one(self, table: str, states: TableStates, places: Places, busy: Collection[str]) -> bool:
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
        """Orders a move, or makes it; False, and the table is suspended, if the name is in use."""
        where = mover(self._task)
        if not begun and where.there(to) and not where.same(now, to):
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

    def _wait(self, table: str, to: str, other: str, states: TableStates, places: Places) -> bool:
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
            f"it was renamed at the source, and its target cannot be called {to}: {why}; free the name "
            f"and resume the table, or set `ddl: {{{KIND}: ignore}}` for it"
        )
        commands.suspend(self._task.commands_path, table, said, who="ddl")


def target_name(task: Task, table: str, states: TableStates) -> str:
    """The name of a table's target."""
    return states[table].target or task.table(table).target or table
