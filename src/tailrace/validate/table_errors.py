"""Errors of single tables: a table that cannot be compared gets an error as its result, and the others
continue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from ..errors import TailraceError, in_one_line, is_of_table

_T = TypeVar("_T")


class TableErrors:
    """Runs work per table and records the errors of those that fail.

    Args:
        ending: errors that concern the whole task, whichever table raised them.

    Attributes:
        messages: error message by table.
    """

    def __init__(self, ending: Sequence[TailraceError] = ()) -> None:
        self.messages: dict[str, str] = {}
        self._ending = ending

    def attempt(self, table: str, work: Callable[[], _T]) -> _T | None:
        """Returns the result of `work`, or None if it fails or failed before because of this table.

        Raises:
            TailraceError: the error does not concern this table alone.
        """
        if table in self.messages:
            return None
        try:
            return work()
        except TailraceError as error:
            self.record(table, error)
            return None

    def record(self, table: str, error: TailraceError) -> None:
        """Records a table's error.

        Raises:
            TailraceError: the error, if it does not concern this table alone.
        """
        if not is_of_table(error) or error in self._ending:
            raise error
        self.messages[table] = in_one_line(error)

    def for_each(self, tables: Iterable[str], work: Callable[[str], _T]) -> dict[str, _T]:
        """Returns the result of `work` for each table for which it does not fail."""
        found = {}
        for table in tables:
            done = self.attempt(table, partial(work, table))
            if done is not None:
                found[table] = done
        return found
