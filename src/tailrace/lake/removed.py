"""Tables that are removed while they are used: a command beside `tailrace drop`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import TableNotFoundError

from ..errors import TailraceError

GONE = "files of the table were removed meanwhile: the task was dropped, or somebody removed them by hand"
_HINT = (
    "if it was dropped, there is nothing left to do; otherwise put the files back. `tailrace status` tells "
    "what there is"
)


@contextmanager
def told(table: str) -> Iterator[None]:
    """Says so when files of a table are missing that were there a moment ago.

    Raises:
        TailraceError: they are.
    """
    try:
        yield
    except (FileNotFoundError, TableNotFoundError) as error:
        raise TailraceError(GONE, where=table, hint=_HINT) from error
