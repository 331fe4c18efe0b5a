"""Guards: checked directly before every commit, to decide whether this process may still commit.

A lease (`state/leases.py`) that was lost says no. In a process that has none there is nobody to ask. Tasks
of Spark run in processes of their own: who starts them hands the guards on (`now`, then `under`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Guard = Callable[[], None]
"""Raises an error if nothing may be committed any more. It can be pickled."""

_guards: list[Guard] = []


@contextmanager
def under(*guards: Guard) -> Iterator[None]:
    """Within the block, every commit of this process also checks these guards.

    >>> def no() -> None:
    ...     raise RuntimeError("taken over")
    >>> with under(no):
    ...     check()
    Traceback (most recent call last):
    RuntimeError: taken over
    >>> check()
    """
    _guards.extend(guards)
    try:
        yield
    finally:
        for one in guards:
            _guards.remove(one)


def now() -> tuple[Guard, ...]:
    """The guards of this process."""
    return tuple(_guards)


def check() -> None:
    """Calls all guards; raises the error of the first that refuses."""
    for one in now():
        one()


@dataclass(frozen=True)
class HandedOn:
    """A function for Spark's tasks that commits under the guards of the process that created it."""

    work: Callable[[Iterable[Any]], Iterator[Any]]
    guards: tuple[Guard, ...]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        with under(*self.guards):
            yield from self.work(batches)


def handed_on(work: Callable[[Iterable[Any]], Iterator[Any]]) -> HandedOn:
    """The function, under the guards of this process."""
    return HandedOn(work, now())
