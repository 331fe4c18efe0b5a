"""What comes when the rules stop at a change: its table is suspended, or an error is raised; and from where
on its conflicts are counted then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..engine.rules import CONFLICTS, Rules
from ..errors import ApplyError, ConstraintError, LimitReachedError, StopPolicyError, TailraceError
from ..keylog.exceptions import AT_CHANGE, Exceptions, Holds
from ..targets.merge_result import Ends
from .apply_result import ApplyResult

_T = TypeVar("_T")
WAYS_OUT = (
    "let such changes be set aside (`on: {data_error: log}`; later changes of the window bring the rows up "
    "to date), or set `baseline: {window: exact}` and give `tailrace resync`, then `tailrace run --once`, "
    "which reads the table before it applies anything"
)


def lies(table: str) -> str:
    """Where the change lies, to be put behind what is wrong with it."""
    return (
        f"; the change is in the open window of the baseline of {table}, where changes that are older than "
        "the rows they meet may break constraints of the target"
    )


def in_window(table: str, error: _T) -> _T | TailraceError:
    """An error that a change in an open window led to: a refused row is explained, others are as they are."""
    if not isinstance(error, ConstraintError):
        return error
    return ConstraintError(f"{error.what}{lies(table)}", where=error.where, hint=WAYS_OUT)


Later = Callable[[Callable[[], None]], None]
"""Has work done once the key log is visible."""


def _failed(kind: str, *, limited: bool) -> type[ApplyError]:
    """The error for a conflict under `stop`; data errors are under it by default, and end no task."""
    if limited:
        return LimitReachedError
    return ApplyError if kind == "data_error" else StopPolicyError


class RulesEnds:
    """Ends batches at a change.

    Args:
        rules: of the batches.
        exceptions: where conflicts are counted.
        suspensions: where tables are suspended.
        later: None: at once.
        window: the changes lie in the open window of a baseline.
    """

    def __init__(
        self, rules: Rules, exceptions: Exceptions, suspensions: Holds, later: Later | None, *, window: bool
    ) -> None:
        self._rules, self._exceptions, self._suspensions = rules, exceptions, suspensions
        self._later: Later = later or (lambda work: work())
        self._window = window

    def begin(self, table: str, reached: int, baseline: int) -> None:
        """Counts a table's conflicts from its newest baseline or suspension on; see `RulesApply.follow`."""
        limits = self._rules.limits
        # All kinds when one has a limit: an open window's rules have fewer limits than the table's.
        self._exceptions.begin(table, CONFLICTS if limits else (), baseline=baseline)
        counted = self._exceptions.counted(table, reached, limits) if limits else {}
        at_limit = any(counted.get(kind, 0) >= most for kind, (most, _) in limits.items())
        if at_limit and (suspension := self._suspensions.newest(table)):
            self._anew(table, suspension)  # a kill came between the two

    def ended(self, name: str, done: ApplyResult, ends: Ends | None, why: str | None) -> ApplyResult:
        """Returns `done`. If the batch ended before a change, its policy suspends the table or raises."""
        if ends is None:
            return done
        seq, kind, policy = ends
        why = why or CONFLICTS[kind]
        hint = (
            "the changes before it are applied; correct the target or that change, or give another "
            f"policy (`--on {kind}=log`, in a task file `on: {{{kind}: log}}`)"
        )
        if self._window:
            why, hint = f"{why}{lies(name)}", f"the changes before it are applied; {WAYS_OUT}"
        said = f"{kind}{AT_CHANGE}{seq}: {why}"
        if policy == "suspend":
            self._later(lambda: self._suspend(name, said))
            return replace(done, suspended=said)
        failed = _failed(kind, limited=kind in self._rules.limits)
        raise failed(f"{kind}: {why}", where=f"{name}, change_seq {seq}", hint=hint)

    def _suspend(self, name: str, why: str) -> None:
        self._suspensions.suspend(name, why)
        self._anew(name, self._suspensions.newest(name))

    def _anew(self, name: str, suspension: int | None) -> None:
        """Has a table that is suspended, or was, count anew: once for each suspension that has a number."""
        self._exceptions.begin(name, CONFLICTS if self._rules.limits else (), suspension=suspension)
