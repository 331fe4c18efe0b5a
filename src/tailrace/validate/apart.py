"""Tables that cannot be compared: an error that concerns one table alone is its result; the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from ..errors import TailraceError, in_one_line, is_of_table

_T = TypeVar("_T")


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
        if not is_of_table(error) or error in self._ending:
            raise error
        self.why[table] = in_one_line(error)

    def each(self, tables: Iterable[str], work: Callable[[str], _T]) -> dict[str, _T]:
        """What the work gives for the tables that it does not fail for."""
        found = {}
        for table in tables:
            done = self.tried(table, partial(work, table))
            if done is not None:
                found[table] = done
        return found
