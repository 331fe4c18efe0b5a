"""Which tables apply may touch now, and what happens when the changes of one cannot be applied.

The gate goes by the commands for single tables (`state/commands.py`) and by the task's groups. It is asked by
the applier alone, under the applier's lock, so once it has taken in an order nothing older is at work.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ..config.groups import GroupSettings, group_of
from ..errors import (
    BaselineNeededError,
    ConfigError,
    ConstraintError,
    FormatError,
    LeaseLostError,
    LimitReachedError,
    SparkLostError,
    TailraceError,
    TargetLostError,
    UnsupportedError,
    in_one_line,
    is_of_table,
)
from ..lake import delta as lake
from ..state import commands, lifecycle
from ..state.baselines import Baseline
from ..state.lifecycle import TableLifecycle, TableStates
from .cadence import SLACK_S

logger = logging.getLogger("tailrace.apply")
RETRIES = 3
"""A table without a group is suspended after so many errors in a row."""
_LASTING = (ConstraintError, ConfigError, FormatError, UnsupportedError)
"""Errors that trying again does not help."""


class Gate(Protocol):
    """What an applier asks of each table."""

    def begin(self, waited: float = 0.0) -> None:
        """Starts a round over all tables. `waited`: seconds since the newest changes were stored."""

    def refresh(self, baselines: Mapping[str, Baseline]) -> None:
        """Takes in what was ordered since."""

    def open(self, table: str) -> bool:
        """Whether the table's changes are to be applied now."""

    def moving(self, table: str) -> bool:
        """Whether its target is about to get another name."""

    def superseded(self, table: str) -> bool:
        """Whether the baseline that it has, and that waits to be mapped, is to get into no target."""

    def went(self, table: str) -> None:
        """Its changes were applied, or it lacks none."""

    def failed(self, table: str, error: TailraceError) -> None:
        """Its changes could not be applied; raises the error when that ends the task."""

    def unclear(self, table: str, why: str) -> bool:
        """Its changes in an open window cannot be told from its rows: whether it gets a new baseline, in an
        exact one."""


class Ordered:
    """The gate of a task.

    Args:
        orders: the task's orders table.
        errors: where errors in a row are kept (`state.lifecycle`), so that a restart counts on.
        groups: the task's groups.
        interval: the least time between two batches of a table (seconds).
        patient: False for a task that ends once everything is applied: intervals do not count then, and an
            error that would be tried again for ever ends it.
        automatic: whether a table gets a new baseline without an order, if only that helps.
        known: the task's tables, with and without a baseline; asked when a group is suspended.
    """

    def __init__(
        self,
        orders: str,
        errors: str,
        groups: Mapping[str, GroupSettings],
        *,
        interval: Callable[[str], float] = lambda _: 0.0,
        patient: bool = True,
        automatic: Callable[[str], bool] = lambda _: False,
        known: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._path, self._kept, self._groups, self.patient = orders, errors, groups, patient
        self._interval = interval
        self._automatic, self._known = automatic, known
        self.orders = 0
        """The number of the newest order that is followed."""
        self.names: dict[str, str] = {}
        """The names of targets that are called otherwise than their tables: changed in place by `refresh`."""
        self._version: tuple[int, int] = (-1, -1)
        self._states = TableStates()
        self._baselines: Mapping[str, Baseline] = {}
        self._stuck: dict[str, int] = {}  # waits for a baseline on its way: table -> the one it cannot follow
        self._errors = {t: one.errors for t, one in lifecycle.failures(errors).items()}
        self._again: set[str] = set()  # failed in this process
        self._last: dict[str, float] = {}
        self._turn: set[str] = set()  # tables that may go on until the next `begin`
        self._began = self._waited = 0.0

    @property
    def failing(self) -> bool:
        """Whether a table is to be tried again."""
        return bool(self._again)

    def begin(self, waited: float = 0.0) -> None:
        """Opens the tables whose interval is over, until the next call.

        An interval begins when the changes of a batch were stored (`waited` seconds before it). Capture
        commits at the same interval, so its next commit is applied when it arrives.
        """
        self._began, self._waited, self._turn = time.monotonic(), waited, set()

    def refresh(self, baselines: Mapping[str, Baseline]) -> None:
        """Takes in orders, and tells of tables that wait from now on."""
        version = (lake.version(self._path), id(baselines))
        if version == self._version:
            return
        orders = commands.read(self._path)
        fresh = lifecycle.states(orders, baselines)
        for table, one in fresh.items():
            before = self._states[table].held
            if one.held and one.held != before:
                logger.warning(
                    "%s is %s by %s: %s; its changes wait",
                    table,
                    one.held,
                    one.who,
                    one.why,
                    extra={"table": table},
                )
            elif before and not one.held:
                logger.warning("%s is no longer %s", table, before, extra={"table": table})
        self._states, self._baselines, self._version = fresh, baselines, version
        names = fresh.target_names
        self.names.update(names)
        for table in self.names.keys() - names.keys():
            del self.names[table]
        numbers = {t: baselines[t].number if t in baselines else 0 for t in self._stuck}
        self._stuck = {t: n for t, n in self._stuck.items() if numbers[t] == n}
        for table in [t for t in {*self._errors, *self._again} if self._waits(t)]:
            self._forget(table)
        self.orders = max((o.number for o in orders), default=0)

    def open(self, table: str) -> bool:
        """Whether nothing holds it, and its interval since its last batch is over."""
        if self._waits(table):
            return False
        if table not in self._turn:
            least = self._interval(table) - SLACK_S
            if self.patient and self._began - self._last.get(table, -math.inf) < least:
                return False
            self._turn.add(table)
        return True

    def hurry(self) -> None:
        """Ends the intervals of all tables."""
        self._last.clear()

    def _waits(self, table: str) -> bool:
        return table in self._stuck or self._states[table].waits

    def moving(self, table: str) -> bool:
        """Whether an order says so."""
        return bool(self._states[table].moving)

    def superseded(self, table: str) -> bool:
        """Whether an order says so."""
        return self._states[table].superseded

    def went(self, table: str) -> None:
        """Ends a row of errors, and begins the table's interval."""
        self._last[table] = self._began - self._waited
        self._forget(table)

    def _forget(self, table: str) -> None:
        self._again.discard(table)
        if self._errors.pop(table, 0):
            lifecycle.record_failure(self._kept, table, 0)

    def failed(self, table: str, error: TailraceError) -> None:
        """Suspends the table or its group, or has it tried again; raises what concerns the task."""
        if isinstance(error, (LeaseLostError, SparkLostError, TargetLostError)):
            raise error  # whatever the table is
        name, state = group_of(self._groups, table), self._states[table]
        if isinstance(error, BaselineNeededError):
            self._needs_baseline(table, error, state)
            return
        if name is None:
            self._failed_alone(table, error)
            return
        if isinstance(error, LimitReachedError):
            self._suspend(name, table, f"{table}: {error.what}")
            return
        group, count = self._groups[name], self._errors.get(table, 0) + 1
        if not group.retries and not self.patient:
            raise error
        self._again.add(table)
        self._errors[table] = count
        if group.retries:
            lifecycle.record_failure(self._kept, table, count, error.what)
        logger.warning("%s: error %d in a row: %s", table, count, error.what, extra={"table": table})
        if group.retries and count >= group.retries:
            self._suspend(name, table, f"{count} errors in a row of {table}: {error.what}")

    def _failed_alone(self, table: str, error: TailraceError) -> None:
        """Suspends a table without a group, at once or after `RETRIES` errors in a row."""
        if not is_of_table(error):
            raise error
        count = RETRIES if isinstance(error, _LASTING) else self._errors.get(table, 0) + 1
        if count < RETRIES:
            self._again.add(table)
            self._errors[table] = count
            logger.warning("%s: error %d in a row: %s", table, count, error.what, extra={"table": table})
            return
        commands.suspend(self._path, table, in_one_line(error, where=True))
        self._forget(table)

    def _suspend(self, group: str, table: str, why: str) -> None:
        """Suspends the group of a table."""
        known = {*self._baselines, *self._known()}
        mine = {t for t in known if group_of(self._groups, t) == group and not self._states[t].removed}
        commands.give(
            self._path, commands.SUSPEND, sorted({table, *mine}), why=f"group {group}: {why}", who="apply"
        )
        self._forget(table)

    def unclear(self, table: str, why: str) -> bool:
        """Suspends the table and asks for a baseline in an exact window."""
        commands.suspend(self._path, table, why)
        commands.resync(self._path, table, why, exact=True)
        return True

    def _needs_baseline(self, table: str, error: TailraceError, state: TableLifecycle) -> None:
        if state.wanted:  # it is on its way
            self._stuck[table] = self._baselines[table].number if table in self._baselines else 0
            self._forget(table)
            return
        commands.suspend(self._path, table, in_one_line(error))
        if self._automatic(table):
            commands.resync(self._path, table, error.what)
