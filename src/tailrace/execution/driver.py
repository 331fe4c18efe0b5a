"""Runs tasks on threads of the driver's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ..config.machine import cores

_T = TypeVar("_T")
_I = TypeVar("_I")


class InlineExecutor(Executor):
    """Runs each submitted call synchronously in the caller's thread.

    >>> with InlineExecutor() as pool:
    ...     list(pool.map(abs, [-1, 2])), pool.submit(int, "7").result()
    ([1, 2], 7)
    """

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Calls the function; `result` raises its error, as with threads."""
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            done.set_exception(error)
        return done


def thread_pool(name: str, threads: int | None = None, *, worth: bool = True) -> Executor:
    """Returns a pool of threads of this process.

    Args:
        name: prefix of the threads' names.
        threads: the maximum number of threads; by default one per core.
        worth: whether the work is large enough for threads; otherwise calls run in the caller's thread.
    """
    return ThreadPoolExecutor(threads or cores(), thread_name_prefix=name) if worth else InlineExecutor()


def run(task: Callable[[_I], _T], inputs: Sequence[_I], kind: str, at_once: int | None = None) -> list[_T]:
    """Returns the results of a task for all inputs, in their order.

    >>> run(abs, [-1, 2], "store")
    [1, 2]
    """
    with thread_pool(kind, min(cores(), at_once or cores()), worth=len(inputs) > 1) as pool:
        return list(pool.map(task, inputs))
