"""Live sources: one file per database, each with the methods of `base.LogSource`; chosen by URL scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..config import addresses

if TYPE_CHECKING:
    from ..config.task import Task
    from .base import LogSource


def open_source(task: Task) -> LogSource:
    """The source that a task reads; ConfigError for an unsupported URL. Close it when done.

    It connects when it is first asked something: SourceError then, when the database does not answer.
    """
    return opener(task.source.url)(task)


def opener(url: str) -> Callable[[Task], LogSource]:
    """What opens the source of a URL; ConfigError for one that nothing here reads.

    >>> opener("postgresql://me@db/shop").__name__
    '_postgresql'
    """
    return _OPENERS[addresses.source_scheme(url)]


def _postgresql(task: Task) -> LogSource:
    from .postgresql.source import from_task

    return from_task(task)


def _soliddb(task: Task) -> LogSource:
    from .soliddb.source import from_task

    return from_task(task)


_OPENERS: dict[str, Callable[[Task], LogSource]] = {
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "soliddb": _soliddb,
}
"""URL scheme -> function that opens such a source, imported late: a task needs only its own database's
driver."""
