"""Progress, cancellation and temporary folder of long queries."""

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
    """The settings of `watching`."""

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
    """Applies to the queries of this thread within the block, and to results that are read in it.

    Args:
        progress: called with the name of what is read, the number of files read, and their total number.
        cancelled: called before each file; if it returns True, the query ends with `CancelledError`.
        scratch: the folder for data that does not fit into memory (DuckDB's, and that of a Spark session
            started in the block); the system's by default.

    >>> from tailrace.query.watch import with_progress, watching
    >>> with watching(progress=lambda *step: print(*step)):
    ...     read = list(with_progress("changes", ["a", "b"]))
    changes 0 2
    changes 1 2
    changes 2 2
    """
    token = _NOW.set(QueryWatch(progress, cancelled, scratch))
    try:
        yield
    finally:
        _NOW.reset(token)


def with_progress(what: str, parts: Sequence[T]) -> Iterator[T]:
    """Yields the parts of a piece of work, and reports progress.

    Raises:
        CancelledError: `cancelled` returned True.
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


def scratch_folder() -> str | None:
    """Returns the folder for data that does not fit into memory; None for the system's."""
    return (_NOW.get() or QueryWatch()).scratch
