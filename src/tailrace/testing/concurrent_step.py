"""Runs a function at one moment of a Spark job: while the job reads its rows."""

# ruff: noqa: S101 - for tests

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


@dataclass(frozen=True)
class Wait:
    """A Spark task's function that returns its rows; the first task waits until `between` has run its
    function.

    Attributes:
        path: prefix of the files by which the two processes synchronize.
    """

    path: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            Path(f"{self.path}.read").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            self._until("done")
        yield from batches

    def between(self, work: Callable[[], None]) -> None:
        """Runs a function while the task waits."""
        self._until("read")
        try:
            work()
        finally:
            Path(f"{self.path}.done").touch()

    def _until(self, word: str) -> None:
        ends = time.monotonic() + 120
        while not Path(f"{self.path}.{word}").exists():
            assert time.monotonic() < ends, f"there is no file {self.path}.{word}"
            time.sleep(0.01)
