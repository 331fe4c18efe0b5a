"""Repeats an operation that another writer may prevent, with increasing delays."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
TRIES = 20
_FIRST_S, _DOUBLINGS = 0.02, 6


def retried(once: Callable[[], _T], on: type[Exception], *, tries: int = TRIES) -> _T:
    """Returns the result of `once`, repeated while it raises `on`; the last attempt's error is raised.

    The delay is 20 ms after the first attempt, doubles each time, and is at most 1.28 s.

    >>> answers = iter([TimeoutError(), "done"])
    >>> def once():
    ...     if isinstance(answer := next(answers), Exception):
    ...         raise answer
    ...     return answer
    >>> retried(once, TimeoutError)
    'done'
    """
    for attempt in range(tries - 1):
        try:
            return once()
        except on:
            time.sleep(_FIRST_S * 2 ** min(attempt, _DOUBLINGS))
    return once()
