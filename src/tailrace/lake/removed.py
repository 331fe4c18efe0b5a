"""Tables that are removed while they are used, e.g. by `tailrace drop`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import TableNotFoundError

from ..errors import TailraceError

GONE = "files of the table were removed meanwhile: the task was dropped, or they were removed by hand"
_HINT = (
    "if it was dropped, there is nothing left to do; otherwise restore the files. `tailrace status` "
    "shows the current state"
)


@contextmanager
def told(table: str) -> Iterator[None]:
    """Raises TailraceError if files of a table that are used in the block were removed."""
    try:
        yield
    except (FileNotFoundError, TableNotFoundError) as error:
        raise TailraceError(GONE, where=table, hint=_HINT) from error
