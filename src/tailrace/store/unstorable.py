"""Handles changes that a change table cannot hold: values that do not fit their column's lake type, and
layouts with conflicting column names.

Such values are NULL in the change table, and `control/quarantine` has them; under `on_bad_value: stop` the
first one of a batch suspends its table before apply can see the batch. Changes in such a layout are not
stored: their table is suspended until it has a new baseline.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..config.task import Task
from ..errors import UnsupportedError, in_one_line
from ..model.sequence import number_of
from ..state import commands, lifecycle
from ..state.capture_gaps import UNSTORED
from ..state.declarations import QUARANTINE
from ..state.lifecycle import TableLifecycle

STORE = "store"
"""The name under which the store suspends tables."""
_LONG = 300
"""The maximum number of characters of a reason in a message."""


@dataclass(frozen=True)
class BadValue:
    """A value that its type cannot hold: `position` of the change in the source's log (hex), the source's
    text, the reason, whether its column is part of the row key, and whether it is in the before image: then
    the earlier change that wrote it was rejected, too."""

    change_seq: str
    position: str
    table: str
    column: str
    value: str
    reason: str
    keyed: bool
    before: bool


@dataclass(frozen=True)
class LeftChange:
    """The first change of a batch that is not stored: its table, its `position` in the source's log (hex),
    and the change number at which its layout starts."""

    position: str
    table: str
    relid: int
    start: int


def set_aside(bad: Sequence[Mapping[str, str]]) -> pa.Table:
    """Returns rows of the quarantine table, from values with their `table`, `column`, `value`, `reason` and,
    unless they are from a baseline, `change_seq`."""
    now = dt.datetime.now(dt.timezone.utc)
    return pa.Table.from_pylist([{**one, "noticed_at": now} for one in bad], QUARANTINE)


def first_written(bad: Iterable[BadValue]) -> list[BadValue]:
    """Returns the first value of each table that a change writes."""
    found: dict[str, BadValue] = {}
    for one in sorted(bad, key=lambda one: one.change_seq):
        if not one.before:
            found.setdefault(one.table, one)
    return [*found.values()]


@dataclass(frozen=True)
class TableSuspensions:
    """Suspends tables of a task, unless a later baseline has replaced the row."""

    task: Task

    def for_values(self, bad: Iterable[BadValue]) -> None:
        """Suspends the tables of values, if the task's policy is `stop`."""
        for one in first_written(bad) if self.task.on_bad_value == "stop" else ():
            state = self._state(one.table, one.position)
            if state is None or (state.held == lifecycle.SUSPENDED and state.who == STORE):
                continue
            earlier = f"; it was suspended before: {state.why}" if state.held == lifecycle.SUSPENDED else ""
            commands.suspend(self.task.commands_path, one.table, _reason(one) + earlier, who=STORE)

    def for_layout(self, one: LeftChange, error: UnsupportedError) -> None:
        """Suspends a table whose changes are not stored, and requests a new baseline; it can start once the
        columns have changed."""
        state, path = self._state(one.table, one.position), self.task.commands_path
        if state is not None and not state.gap:
            why = f"{UNSTORED}: {in_one_line(error)}"
            commands.suspend(path, one.table, why, who=STORE)
            commands.give(path, commands.ANEW, [one.table], why=why, who=STORE)

    def _state(self, table: str, position: str) -> TableLifecycle | None:
        """Returns the lifecycle of a table; None if its baseline already includes the change at a
        position."""
        state = lifecycle.read(self.task)[table]
        if state.baseline is not None and position < state.baseline.position:
            return None
        return state


def _reason(one: BadValue) -> str:
    at = f"change number {number_of(one.change_seq)} (change_seq {one.change_seq})"
    other = (
        f"correct it at the source, or keep the column as text (`types: {{{one.table}.{one.column}: "
        f"string}}` and a new start), then `tailrace resync TASK {one.table}`"
    )
    cure = f"a row key cannot be NULL: {other}"
    if not one.keyed:
        cure = f"`tailrace resume TASK {one.table}` continues with NULL instead of it; or {other}"
    reason = one.reason if len(one.reason) <= _LONG else f"{one.reason[:_LONG]} ..."
    return f"{reason}, in {at}: `control/quarantine` has it, and the changes wait; {cure}"
