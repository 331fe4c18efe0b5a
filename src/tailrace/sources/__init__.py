"""Live sources: one package per database, chosen by URL scheme; each implements `base.LogSource`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..config import addresses

if TYPE_CHECKING:
    from ..config.task import Task
    from .base import LogSource


def open_source(task: Task) -> LogSource:
    """Returns the source of a task. Close it when done. It connects on first use.

    Raises:
        ConfigError: the URL's scheme is not supported.
    """
    return opener(task.source.url)(task)


def opener(url: str) -> Callable[[Task], LogSource]:
    """Returns the function that opens the source of a URL.

    >>> opener("postgresql://me@db/shop").__name__
    '_postgresql'

    Raises:
        ConfigError: the URL's scheme is not supported.
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
"""Openers by URL scheme. Imports are late: a task needs only the driver of its database."""
