"""What is said of a change that the target refuses in the open window of a baseline, and the ways out.

The rows may be newer than such a change, so that together they are a state that the source never had: a
constraint that the source has, too, may refuse it.
"""

from __future__ import annotations

from typing import TypeVar

from ..errors import ConstraintError, TailraceError

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
