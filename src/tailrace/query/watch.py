"""Long questions: their progress, a way to end them, and where they put what does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from ..errors import CancelledError

T = TypeVar("T")


@dataclass(frozen=True)
class QueryWatch:
    """What is in force: see `watching`."""

    progress: Callable[[str, int, int], None] | None = None
    cancelled: Callable[[], bool] | None = None
    scratch: str | None = None


_NOW: ContextVar[QueryWatch | None] = ContextVar("tailrace_watch", default=None)


@contextmanager
def watching(
    *,
    progress: Callable[[str, int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    scratch: str | None = None,
) -> Iterator[None]:
    """Holds for the questions of this thread in the block, and for answers that are read in it.

    Args:
        progress: is told what is read, how many files of it are done, and how many there are.
        cancelled: is asked before each file; once it says yes, the question ends with `CancelledError`.
        scratch: the folder for what does not fit into memory (DuckDB's, and that of a Spark session that is
            started in the block); the system's by default.

    >>> from tailrace.query.watch import watched, watching
    >>> with watching(progress=lambda *step: print(*step)):
    ...     read = list(watched("changes", ["a", "b"]))
    changes 0 2
    changes 1 2
    changes 2 2
    """
    token = _NOW.set(QueryWatch(progress, cancelled, scratch))
    try:
        yield
    finally:
        _NOW.reset(token)


def watched(what: str, parts: Sequence[T]) -> Iterator[T]:
    """The parts of a piece of work, one after the other.

    Raises:
        CancelledError: the user has ended it.
    """
    now = _NOW.get() or QueryWatch()
    for done, part in enumerate(parts):
        if now.progress is not None:
            now.progress(what, done, len(parts))
        if now.cancelled is not None and now.cancelled():
            raise CancelledError(
                f"reading {what} was cancelled", where=f"{done} of {len(parts)} files are read"
            )
        yield part
    if now.progress is not None and parts:
        now.progress(what, len(parts), len(parts))


def scratch() -> str | None:
    """The folder for what does not fit into memory; None: the system's."""
    return (_NOW.get() or QueryWatch()).scratch
