"""Threads for work that is worth them: a few rows are done before a thread has started."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .machine import cores

_T = TypeVar("_T")


class Here(Executor):
    """Does at once, in the calling thread, what it is given.

    >>> with Here() as pool:
    ...     list(pool.map(abs, [-1, 2])), pool.submit(int, "7").result()
    ([1, 2], 7)
    """

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Calls the function; its error is raised by `result`, as with threads."""
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            done.set_exception(error)
        return done


def lanes(name: str, many: int | None = None, *, worth: bool) -> Executor:
    """So many threads (None: one for each core); none when the work is not `worth` them."""
    return ThreadPoolExecutor(many or cores(), thread_name_prefix=name) if worth else Here()
