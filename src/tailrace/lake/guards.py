"""Guards that are checked directly before every commit: may this process still commit?

The guard of a lost lease (`state/leases.py`) refuses. Processes without a lease have no guard. Spark's tasks
run in other processes, so the driver passes its guards to them (`now`, then `under`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import storage

Guard = Callable[[], None]
"""Picklable function that raises an error if commits are no longer allowed."""

_guards: list[Guard] = []


@contextmanager
def under(*guards: Guard) -> Iterator[None]:
    """Adds guards that every commit of this process checks within the block.

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
    """Returns the guards of this process."""
    return tuple(_guards)


def check() -> None:
    """Calls all guards, and raises the error of the first that refuses."""
    for one in now():
        one()


@dataclass(frozen=True)
class HandedOn:
    """A function for Spark's tasks, which commits under the guards of the process that created it, and knows
    its object stores."""

    work: Callable[[Iterable[Any]], Iterator[Any]]
    guards: tuple[Guard, ...]
    stores: Mapping[str, Mapping[str, str]] = field(repr=False)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        storage.register_all(self.stores)
        with under(*self.guards):
            yield from self.work(batches)


def handed_on(work: Callable[[Iterable[Any]], Iterator[Any]]) -> HandedOn:
    """Returns the function with the guards and object stores of this process."""
    return HandedOn(work, now(), storage.registered())
