"""Carries out the policy for a conflict at which a batch ended: suspends the table, or raises an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..engine.rules import CONFLICTS, Rules
from ..errors import ApplyError, ConstraintError, LimitReachedError, StopPolicyError, TailraceError
from ..keylog.control_tables import AT_CHANGE, ApplyExceptions, SuspensionStore
from ..targets.merge_result import Ends
from .apply_result import ApplyResult

_T = TypeVar("_T")
WINDOW_HINT = (
    "set such changes aside (`on: {data_error: log}`; later changes of the window update the rows), or set "
    "`baseline: {window: exact}`, then run `tailrace resync` and `tailrace run --once`, which reads the "
    "table before it applies anything"
)


def in_window_of(table: str) -> str:
    """The end of a message about a change in the open window of a table's baseline."""
    return (
        f"; the change is in the open window of the baseline of {table}, where changes that are older than "
        "the rows they find may break constraints of the target"
    )


def in_window(table: str, error: _T) -> _T | TailraceError:
    """Returns the error of a change in an open window; one of a refused row gets an explanation."""
    if not isinstance(error, ConstraintError):
        return error
    return ConstraintError(f"{error.what}{in_window_of(table)}", where=error.where, hint=WINDOW_HINT)


Later = Callable[[Callable[[], None]], None]
"""Runs work once the key log is visible."""


def _error_type(kind: str, *, limited: bool) -> type[ApplyError]:
    """The type of the error for a conflict under `stop`. A data error does not end the task."""
    if limited:
        return LimitReachedError
    return ApplyError if kind == "data_error" else StopPolicyError


class ConflictPolicy:
    """Suspends tables and raises errors as the rules say for the change at which a batch ended.

    Args:
        rules: the rules of the batches.
        exceptions: where conflicts are counted.
        suspensions: where tables are suspended.
        later: runs a suspension once the key log is visible; by default it is run at once.
        window: whether the changes are in the open window of a baseline.
    """

    def __init__(
        self,
        rules: Rules,
        exceptions: ApplyExceptions,
        suspensions: SuspensionStore,
        later: Later | None,
        *,
        window: bool,
    ) -> None:
        self._rules, self._exceptions, self._suspensions = rules, exceptions, suspensions
        self._later: Later = later or (lambda work: work())
        self._window = window

    def begin(self, table: str, reached: int, baseline: int) -> None:
        """Counts a table's conflicts from its newest baseline or suspension on."""
        limits = self._rules.limits
        # All kinds when one has a limit: an open window's rules have fewer limits than the table's.
        self._exceptions.reset_counts(table, CONFLICTS if limits else (), baseline=baseline)
        counted = self._exceptions.counts(table, reached, limits) if limits else {}
        at_limit = any(counted.get(kind, 0) >= most for kind, (most, _) in limits.items())
        if at_limit and (suspension := self._suspensions.newest_number(table)):
            self._count_again(table, suspension)  # after a crash between the suspension and this

    def ended(self, name: str, done: ApplyResult, ends: Ends | None, why: str | None) -> ApplyResult:
        """Returns the result of a batch. Suspends its table, or raises, if it ended before a change."""
        if ends is None:
            return done
        seq, kind, policy = ends
        why = why or CONFLICTS[kind]
        hint = (
            "the changes before it are applied; correct the target or that change, or give another "
            f"policy (`--on {kind}=log`, in a task file `on: {{{kind}: log}}`)"
        )
        if self._window:
            why, hint = f"{why}{in_window_of(name)}", f"the changes before it are applied; {WINDOW_HINT}"
        reason = f"{kind}{AT_CHANGE}{seq}: {why}"
        if policy == "suspend":
            self._later(lambda: self._suspend(name, reason))
            return replace(done, suspended=reason)
        error = _error_type(kind, limited=kind in self._rules.limits)
        raise error(f"{kind}: {why}", where=f"{name}, change_seq {seq}", hint=hint)

    def _suspend(self, name: str, why: str) -> None:
        self._suspensions.suspend(name, why)
        self._count_again(name, self._suspensions.newest_number(name))

    def _count_again(self, name: str, suspension: int | None) -> None:
        """Counts the conflicts of a table from zero again: once for each suspension that has a number."""
        self._exceptions.reset_counts(name, CONFLICTS if self._rules.limits else (), suspension=suspension)
