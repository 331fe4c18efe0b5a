"""Processes that read baselines, which go on to the next test: starting one takes longer than most tests."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import pytest

from tailrace.capture import baseline

MOST = 2
"""A test that asks for more reads side by side as well with these."""


class LastingReaders(ProcessPoolExecutor):
    """As `baseline.readers` makes them; at the end of a block nothing is on its way, but they wait for the next.

    Args:
        idle: where those are that no block has.
    """

    def __init__(self, workers: int, idle: list[LastingReaders]) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(workers, mp_context=context, initializer=baseline.end_with, initargs=(os.getpid(),))
        self._idle, self._given = idle, list[Future[Any]]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._given.append(super().submit(fn, *args, **kwargs))
        return self._given[-1]

    def __exit__(self, *_: object) -> None:
        wait(self._given)
        ended = [one.exception() for one in self._given if not one.cancelled()]
        self._given.clear()
        if any(isinstance(error, BrokenProcessPool) for error in ended):
            self.shutdown()
        else:
            self._idle.append(self)


@contextmanager
def lasting_readers() -> Iterator[None]:
    """Makes every capture of this process take readers that an earlier one has left."""
    idle: dict[int, list[LastingReaders]] = {}

    def readers(workers: int) -> ProcessPoolExecutor:
        free = idle.setdefault(many := min(workers, MOST), [])
        try:
            return free.pop()
        except IndexError:
            return LastingReaders(many, free)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline, "readers", readers)
        yield
    for one in [one for free in idle.values() for one in free]:
        one.shutdown()
