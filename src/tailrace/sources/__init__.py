"""Live sources: one file per database, each with the methods of `base.LogSource`; chosen by URL scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..config import addresses
from ..errors import ConfigError
from ..model.nearest import meant

if TYPE_CHECKING:
    from ..config.task import Task
    from .base import LogSource


def open_source(task: Task) -> LogSource:
    """The source a task reads; ConfigError for a URL that nothing here reads. Close it when done.

    It connects when it is first asked something: SourceError then, when the database does not answer.
    """
    return opener(task.source.url)(task)


def opener(url: str) -> Callable[[Task], LogSource]:
    """What opens the source of a URL.

    >>> opener("postgresql://me@db/shop").__name__
    '_postgresql'
    >>> opener("postgesql://me@db/shop")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: no source reads postgesql:// addresses
      where: source.url
      hint: did you mean postgresql?
    """
    addresses.check(url)
    scheme = url.partition("://")[0]
    if scheme in SCHEMES:
        return SCHEMES[scheme]
    known = " or ".join(f"{name}://user@host:port/database" for name in SCHEMES)
    raise ConfigError(
        f"no source reads {scheme}:// addresses" if scheme else "the source's address has no scheme",
        where="source.url",
        hint=meant(scheme, SCHEMES, many=1, cutoff=0.6) or f"write {known}",
    )


def _postgresql(task: Task) -> LogSource:
    from .postgresql.source import from_task

    return from_task(task)


def _soliddb(task: Task) -> LogSource:
    from .soliddb.source import from_task

    return from_task(task)


SCHEMES: dict[str, Callable[[Task], LogSource]] = {
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "soliddb": _soliddb,
}
"""URL scheme -> what opens such a source, imported late: a task needs its own database's driver only."""
