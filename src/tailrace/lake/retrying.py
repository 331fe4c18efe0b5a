"""Repeats work that another writer may prevent: how often, and how long it waits in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
TRIES = 20
_FIRST_S, _DOUBLINGS = 0.02, 6


def retried(once: Callable[[], _T], on: type[Exception], *, tries: int = TRIES) -> _T:
    """The result of `once`, repeated while it raises `on`; the last attempt's error is the caller's.

    It waits 20 ms after the first attempt, twice as long after each other one, and never more than 1.28 s.

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
