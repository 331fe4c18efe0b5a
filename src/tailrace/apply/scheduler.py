"""Decides which tables may be applied now, and what happens if the changes of a table cannot be applied.

The scheduler follows the commands for single tables (`state/commands.py`), the intervals of tables, and the
task's groups. Only the applier calls it, under the applier's lock. So once it has read a command, no earlier
state is in use.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping

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
"""A table without a group is suspended after this many errors in a row."""
_LASTING = (ConstraintError, ConfigError, FormatError, UnsupportedError)
"""Errors that would occur again with every attempt."""


class Scheduler:
    """Decides which tables of a task may be applied now.

    Args:
        commands: path of the task's commands.
        errors: path of the count of errors in a row (`state.lifecycle`), which a restart continues.
        groups: the task's groups.
        interval: the least time between two batches of a table (seconds).
        patient: False for a task that ends once everything is applied: it has no intervals, and an error that
            would be tried again forever ends it.
        automatic: whether a table that needs a new baseline gets one without a command.
        known: returns the tables of the task, with and without a baseline; called to suspend a group.
    """

    def __init__(
        self,
        commands_path: str,
        errors: str,
        groups: Mapping[str, GroupSettings],
        *,
        interval: Callable[[str], float] = lambda _: 0.0,
        patient: bool = True,
        automatic: Callable[[str], bool] = lambda _: False,
        known: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._path, self._errors_path, self._groups, self.patient = commands_path, errors, groups, patient
        self._interval = interval
        self._automatic, self._known = automatic, known
        self.command = 0
        """The number of the newest command that was read."""
        self.names: dict[str, str] = {}
        """The names of targets that differ from those of their tables; `refresh` changes it in place."""
        self._version: tuple[int | None, int] = (-1, -1)
        self._states = TableStates()
        self._baselines: Mapping[str, Baseline] = {}
        self._stuck: dict[
            str, int
        ] = {}  # tables that wait for a baseline, with the number of the present one
        self._errors = {t: one.errors for t, one in lifecycle.failures(errors).items()}
        self._failing: set[str] = set()  # in this process
        self._last: dict[str, float] = {}
        self._due: set[str] = set()  # until the next `begin`
        self._began = self._waited = 0.0

    @property
    def failing(self) -> bool:
        """Whether a table will be tried again."""
        return bool(self._failing)

    def begin(self, waited: float = 0.0) -> None:
        """Starts a round: tables whose interval is over are due until the next call.

        An interval starts when the newest changes of a batch were stored, `waited` seconds before the batch.
        Capture commits at the same interval, so its next commit is applied when it arrives.
        """
        self._began, self._waited, self._due = time.monotonic(), waited, set()

    def refresh(self, baselines: Mapping[str, Baseline]) -> None:
        """Reads new commands, and reports tables that wait from now on."""
        version = (lake.version(self._path), id(baselines))
        if version == self._version:
            return
        given = commands.read(self._path)
        fresh = lifecycle.states(given, baselines)
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
        for table in [t for t in {*self._errors, *self._failing} if self._waits(t)]:
            self._forget(table)
        self.command = max((one.number for one in given), default=0)

    def is_due(self, table: str) -> bool:
        """Whether a table may be applied now: no command stops it, and its interval is over."""
        if self._waits(table):
            return False
        if table not in self._due:
            least = self._interval(table) - SLACK_S
            if self.patient and self._began - self._last.get(table, -math.inf) < least:
                return False
            self._due.add(table)
        return True

    def hurry(self) -> None:
        """Ends the intervals of all tables."""
        self._last.clear()

    def _waits(self, table: str) -> bool:
        return table in self._stuck or self._states[table].waits

    def moving(self, table: str) -> bool:
        """Whether the target of a table is about to be renamed."""
        return bool(self._states[table].moving)

    def superseded(self, table: str) -> bool:
        """Whether the staged baseline of a table is not to be loaded, because a command has replaced it."""
        return self._states[table].superseded

    def applied(self, table: str) -> None:
        """Notes that a table has all changes. Resets its count of errors, and starts its interval."""
        self._last[table] = self._began - self._waited
        self._forget(table)

    def _forget(self, table: str) -> None:
        self._failing.discard(table)
        if self._errors.pop(table, 0):
            lifecycle.record_failure(self._errors_path, table, 0)

    def failed(self, table: str, error: TailraceError) -> None:
        """Notes that the changes of a table could not be applied. It is tried again, or it is suspended,
        alone or with its group.

        Raises:
            TailraceError: `error`, if it ends the task.
        """
        if isinstance(error, (LeaseLostError, SparkLostError, TargetLostError)):
            raise error  # it does not concern the table
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
        self._failing.add(table)
        self._errors[table] = count
        if group.retries:
            lifecycle.record_failure(self._errors_path, table, count, error.what)
        logger.warning("%s: error %d in a row: %s", table, count, error.what, extra={"table": table})
        if group.retries and count >= group.retries:
            self._suspend(name, table, f"{count} errors in a row of {table}: {error.what}")

    def _failed_alone(self, table: str, error: TailraceError) -> None:
        """Suspends a table without a group, at once or after `RETRIES` errors in a row."""
        if not is_of_table(error):
            raise error
        count = RETRIES if isinstance(error, _LASTING) else self._errors.get(table, 0) + 1
        if count < RETRIES:
            self._failing.add(table)
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

    def ambiguous(self, table: str, why: str) -> None:
        """Suspends a table whose changes cannot be distinguished from the rows of its baseline, and requests
        a new baseline in an exact window."""
        commands.suspend(self._path, table, why)
        commands.resync(self._path, table, why, exact=True)

    def _needs_baseline(self, table: str, error: TailraceError, state: TableLifecycle) -> None:
        if state.wanted:  # a new baseline is requested already
            self._stuck[table] = self._baselines[table].number if table in self._baselines else 0
            self._forget(table)
            return
        commands.suspend(self._path, table, in_one_line(error))
        if self._automatic(table):
            commands.resync(self._path, table, error.what)
