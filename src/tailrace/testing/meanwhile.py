"""Something that happens at one moment of a Spark job: while it reads its rows."""

# ruff: noqa: S101 - for tests

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


@dataclass(frozen=True)
class Wait:
    """A Spark task's function that lets rows pass; the first task waits until `between` has done its work.

    `path`: what the names of files begin with by which the two tell each other.
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
        """Does it while the task waits."""
        self._until("read")
        try:
            work()
        finally:
            Path(f"{self.path}.done").touch()

    def _until(self, word: str) -> None:
        ends = time.monotonic() + 120
        while not Path(f"{self.path}.{word}").exists():
            assert time.monotonic() < ends, f"nobody has {word}"
            time.sleep(0.01)
