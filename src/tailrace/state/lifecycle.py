"""The state of each captured table, and everything that changes it.

It follows from the task's own tables alone, so it is the same for all processes and after any restart:

| state | begins with | ends with |
| --- | --- | --- |
| discovered | a change of a table without a target (its policy is below level 2) | |
| waiting for baseline | the first change, `add`, `anew`, or `resync` without a baseline | `land` |
| loading | `land` | the baseline is recorded, and its window closed |
| applying | its baseline is recorded; `resume` | the states below |
| paused | `pause` | `resume` |
| suspended | `suspend` | `resume`, or a new baseline |
| failed | an error that is retried | its changes are applied, or it is suspended |
| dropped | `remove` | `add` |

A pause holds under a suspension. After `resync` changes are applied until the new baseline replaces the
target; after `anew`, which says that changes are lost, they wait for it. Commands (`commands`), baselines
(`baselines`) and failures are the input; `follow` is the transition that a command makes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..config.policies import MEDIUM
from . import commands
from .baselines import Baseline, read_baselines, read_open
from .commands import Command
from .declarations import BASELINES, FAILURES
from .state_table import StateTable

if TYPE_CHECKING:
    from ..config.task import Task

PAUSED, SUSPENDED = "paused", "suspended"
_WHILE_CAPTURED = (
    commands.PAUSE, commands.SUSPEND, commands.RESUME, commands.RESYNC, commands.RESYNC_EXACT, commands.ANEW,
)  # fmt: skip
"""Actions that do nothing to a table that was removed, perhaps by a command at the same moment."""
_AT_TARGET = (commands.LAND, commands.DROP, commands.DROPPED, commands.RENAME, commands.RENAMED)
"""Actions about the target itself."""


class TableState(Enum):
    """A table's state; see the module."""

    DISCOVERED = "discovered"
    WAITING = "waiting for baseline"
    LOADING = "loading"
    APPLYING = "applying"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    FAILED = "failed"
    DROPPED = "dropped"


class Answer(Protocol):
    """The part of a baseline that the lifecycle depends on."""

    @property
    def order(self) -> int:
        """Number of the newest command for its table when it began; 0 if there was none."""

    @property
    def number(self) -> int:
        """The baseline's own number: 1, 2, 3, ... of its table."""


@dataclass(frozen=True)
class Failure:
    """A table that is retried: the number of consecutive `errors`, the last one (`what`), and when it
    happened."""

    errors: int
    what: str
    at: dt.datetime


@dataclass(frozen=True)
class TableLifecycle:
    """The state of one table.

    Attributes:
        member: `file` (as the task file says), `added` or `removed`.
        unlisted: it was removed because the task file no longer selects it: it returns with the file.
        held: `paused`, `suspended` or, if apply may take its changes, empty.
        pause: the command that paused it, which holds under a suspension; None: it is not paused.
        why, who, since: of the command that holds it, removed it, or asks for a baseline.
        wanted: number of the newest command that asks for a baseline and has none yet; 0: none does.
        exact: that baseline is to be read in an exact window.
        landing: number of the baseline that is about to replace the target; 0: none is.
        gap: changes are missing between its target and what is captured now: it was removed for a while, or
            the source's log was lost.
        dropped: number of the command to remove its target; 0: it stays.
        gone: its target has been removed.
        target: the name of its target; empty: the table's own, or the one its mapping says.
        moving: the name that its target is about to get; empty: it keeps the one it has.
        move: number of the command that says so; 0: none does.
        baseline: its newest baseline on top of which changes may be applied; None: it has none.
        loading: its newest baseline, if its window is still open.
        failure: the error that is retried; None: none is.
        expected: its state as long as it has no baseline, and nothing else decides.
    """

    table: str
    member: str = "file"
    unlisted: bool = False
    held: str = ""
    pause: Command | None = None
    why: str = ""
    who: str = ""
    since: dt.datetime | None = None
    wanted: int = 0
    exact: bool = False
    landing: int = 0
    gap: bool = False
    dropped: int = 0
    gone: bool = False
    target: str = ""
    moving: str = ""
    move: int = 0
    baseline: Baseline | None = None
    loading: Baseline | None = None
    failure: Failure | None = None
    expected: TableState = TableState.DISCOVERED

    @property
    def state(self) -> TableState:
        """The state that says what the table is waiting for, or that its changes are applied."""
        if self.removed:
            return TableState.DROPPED
        if self.held:
            return TableState(self.held)
        if self.landing or self.loading is not None:
            return TableState.LOADING
        if self.gap or (self.wanted and self.baseline is None):
            return TableState.WAITING
        if self.failure is not None:
            return TableState.FAILED
        return self.expected if self.baseline is None else TableState.APPLYING

    @property
    def removed(self) -> bool:
        """Whether it is no longer captured."""
        return self.member == "removed"

    @property
    def busy(self) -> bool:
        """Whether capture is changing its target: a baseline replaces it, or it is being renamed."""
        return bool(self.landing or self.moving)

    @property
    def superseded(self) -> bool:
        """Whether its baseline must no longer be loaded: another one follows, or none."""
        return bool(self.wanted or self.landing or self.gap or self.removed)

    @property
    def waits(self) -> bool:
        """Whether apply leaves the table's changes alone."""
        return bool(self.held or self.gap or self.busy)


class TableStates(dict[str, TableLifecycle]):
    """The lifecycles of a task's tables, by name. Other tables are as the task file says, in the state that
    `expected` returns for tables without a baseline.

    >>> TableStates()["s.t"].member
    'file'
    """

    def __init__(
        self,
        found: Mapping[str, TableLifecycle] | None = None,
        expected: Callable[[str], TableState] = lambda _: TableState.DISCOVERED,
    ) -> None:
        super().__init__(found or {})
        self._expected = expected

    def __missing__(self, table: str) -> TableLifecycle:
        return TableLifecycle(table, expected=self._expected(table))

    @property
    def removed(self) -> set[str]:
        """The tables that are no longer captured."""
        return {t for t, one in self.items() if one.removed}

    @property
    def waiting(self) -> dict[str, TableLifecycle]:
        """The tables whose changes apply leaves alone."""
        return {t: one for t, one in self.items() if one.waits}

    @property
    def target_names(self) -> dict[str, str]:
        """The names of targets that differ from their tables' names.

        >>> one = TableStates({"s.t": TableLifecycle("s.t", target="s.u"), "s.v": TableLifecycle("s.v")})
        >>> one.target_names
        {'s.t': 's.u'}
        """
        return {t: one.target for t, one in self.items() if one.target}

    @property
    def baselines(self) -> dict[str, Baseline]:
        """The newest baseline of each table on top of which changes may be applied."""
        return {t: one.baseline for t, one in self.items() if one.baseline is not None}


def states(
    given: Iterable[Command], baselines: Mapping[str, Answer], found: TableStates | None = None
) -> TableStates:
    """The lifecycle of each table that commands name, given the newest baseline of each table; `found`: with
    the result in it.

    >>> at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    >>> given = [Command(1, at, "s.t", "suspend", "n became text", "ddl"), Command(2, at, "s.t", "resync")]
    >>> table = states(given, {})["s.t"]
    >>> table.held, table.why, table.wanted, table.waits
    ('suspended', 'n became text', 2, True)
    """
    found = TableStates() if found is None else found
    for one in given:
        found[one.table] = follow(found[one.table], one, baselines.get(one.table))
    return found


def of_task(path: str, baselines: Mapping[str, Answer]) -> TableStates:
    """The lifecycles that the commands in a table lead to, given the newest baseline of each table."""
    return states(commands.read(path), baselines)


def read(task: Task) -> TableStates:
    """The lifecycle of every table of a task that has a command, a baseline, or a failure."""
    record = task.control_path(BASELINES.name)
    taken, opened = read_baselines(record), read_open(record)
    failed = failures(task.control_path(FAILURES.name))
    found = states(commands.read(task.commands_path), taken, TableStates(expected=partial(_expected, task)))
    for table in found.keys() | taken.keys() | opened.keys() | failed.keys():
        found[table] = replace(
            found[table], baseline=taken.get(table), loading=opened.get(table), failure=failed.get(table)
        )
    return found


def _expected(task: Task, table: str) -> TableState:
    """The state of a table of a task that has no baseline."""
    if task.policy(table).level < MEDIUM:
        return TableState.DISCOVERED
    return TableState.WAITING if task.baseline.enabled else TableState.APPLYING


def follow(state: TableLifecycle, one: Command, taken: Answer | None) -> TableLifecycle:
    """The state of a table after a command, given its newest baseline."""
    said: dict[str, Any] = {"why": one.why, "who": one.who, "since": one.at}
    if state.removed and one.action in _WHILE_CAPTURED:
        return state
    if one.action in (commands.PAUSE, commands.SUSPEND):
        return _held(state, said, one)
    if one.action in commands.BASELINES:
        return _asked(state, said, one, taken is not None and taken.order >= one.number)
    if one.action in _AT_TARGET:
        return _at_target(state, one, taken)
    if one.action == commands.REMOVE:
        unlisted = one.who == commands.TASK_FILE
        state = replace(state, **said, member="removed", unlisted=unlisted)
        return replace(state, held="", pause=None, wanted=0, landing=0, gap=True)
    return _freed(state)


def _held(state: TableLifecycle, said: Mapping[str, Any], one: Command) -> TableLifecycle:
    """The state after a pause or a suspension, under which a pause holds."""
    if one.action == commands.SUSPEND:
        return replace(state, **said, held=SUSPENDED)
    state = replace(state, pause=one)
    return state if state.held == SUSPENDED else replace(state, **said, held=PAUSED)


def _at_target(state: TableLifecycle, one: Command, taken: Answer | None) -> TableLifecycle:
    """The state after a command about the target itself."""
    if one.action == commands.LAND:
        return replace(state, landing=0 if taken and taken.number >= one.baseline else one.baseline)
    if one.action == commands.RENAME:
        return replace(state, moving=one.target, move=one.number)
    if one.action == commands.RENAMED:
        return replace(state, moving="", move=0, target="" if one.target == one.table else one.target)
    if one.action == commands.DROPPED:
        return replace(state, dropped=0, gone=True)
    return replace(state, dropped=one.number)


def _asked(state: TableLifecycle, said: Mapping[str, Any], one: Command, answered: bool) -> TableLifecycle:
    """The state after a command that asks for a baseline."""
    if one.action == commands.ADD:
        member = "file" if one.who == commands.TASK_FILE else "added"
        state = replace(state, member=member, unlisted=False, dropped=0, gone=False)
    if one.action == commands.ANEW:
        state = replace(state, gap=True)
    if not answered:
        exact = state.exact or one.action == commands.RESYNC_EXACT
        return replace(state, **({} if state.held else said), wanted=one.number, exact=exact)
    state = replace(
        state, wanted=0, exact=False, gap=state.gap and one.action not in (commands.ADD, commands.ANEW)
    )
    if state.pause is None:
        return _freed(state)
    pause = state.pause  # a baseline ends a suspension, not the pause under it
    return replace(state, held=PAUSED, why=pause.why, who=pause.who, since=pause.at)


def _freed(state: TableLifecycle) -> TableLifecycle:
    return replace(state, held="", pause=None, why="", who="", since=None)


def failures(path: str) -> dict[str, Failure]:
    """The tables that are retried, counted across restarts."""
    return {table: one for table, one in _failures(path).latest().items() if one.errors}


def record_failure(path: str, table: str, errors: int, what: str = "") -> None:
    """Records the number of consecutive errors of a table; 0: none now."""
    _failures(path).append([{"table": table, "errors": errors, "what": what}])


def _failures(path: str) -> StateTable[Failure]:
    return StateTable(path, FAILURES, lambda row: Failure(row["errors"], row["what"], row["at"]))
