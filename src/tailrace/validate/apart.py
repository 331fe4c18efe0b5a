"""Tables that cannot be compared: an error that concerns one table alone is its result; the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from ..errors import (
    ApplyError,
    ConcurrentCommitError,
    ConfigError,
    ConnectionLostError,
    FormatError,
    PositionError,
    SourceError,
    TableMovedError,
    TailraceError,
    TargetLostError,
    UnsupportedError,
)

_T = TypeVar("_T")
_OF_TABLES = (ApplyError, ConfigError, FormatError, SourceError, UnsupportedError)
_OF_TASKS = (ConcurrentCommitError, ConnectionLostError, PositionError, TableMovedError, TargetLostError)
"""Those of them that are none: a server that is gone, or what goes away when everything is done again."""


class Apart:
    """Works on tables one by one, and keeps those apart that it fails for.

    Args:
        ending: errors that concern the task, whichever table they were raised for.

    Attributes:
        why: these tables, and what is the matter with each.
    """

    def __init__(self, ending: Sequence[TailraceError] = ()) -> None:
        self.why: dict[str, str] = {}
        self._ending = ending

    def tried(self, table: str, work: Callable[[], _T]) -> _T | None:
        """What the work gives; None: it fails, or has failed before, because of this table.

        Raises:
            TailraceError: what is no matter of this table alone.
        """
        if table in self.why:
            return None
        try:
            return work()
        except TailraceError as error:
            self.failed(table, error)
            return None

    def failed(self, table: str, error: TailraceError) -> None:
        """Keeps a table apart because of an error.

        Raises:
            TailraceError: the error, if it does not concern this table alone.
        """
        if not isinstance(error, _OF_TABLES) or isinstance(error, _OF_TASKS) or error in self._ending:
            raise error
        self.why[table] = words(error)

    def each(self, tables: Iterable[str], work: Callable[[str], _T]) -> dict[str, _T]:
        """What the work gives for the tables that it does not fail for."""
        found = {}
        for table in tables:
            done = self.tried(table, partial(work, table))
            if done is not None:
                found[table] = done
        return found


def words(error: TailraceError) -> str:
    """An error in one line.

    >>> words(ConfigError("s.t is not in the target", where="db", hint="take a new baseline"))
    's.t is not in the target (take a new baseline)'
    """
    said = " ".join(error.what.split())
    return f"{said} ({error.hint})" if error.hint else said
