"""A Delta table as it was at an older version, as far as its log and its files are still there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ..errors import PositionError

_GONE = "files of this version are gone"
LATER = "ask for a later place"
"""What to do when an old version cannot be read."""


def at_version(path: str, version: int) -> DeltaTable:
    """The table as of a version.

    Raises:
        PositionError: commits of its log are gone that this version needs.
    """
    try:
        return DeltaTable(path, version=version)
    except (DeltaError, FileNotFoundError) as error:
        DeltaTable(path)  # there is no table at all: deltalake's own words
        raise _gone(f"{path}, version {version}", LATER, error) from None


@contextmanager
def files_there(where: str, hint: str) -> Iterator[None]:
    """Says so when files of a version are read that are there no more; `hint`: what to do.

    Raises:
        PositionError: they are gone.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise _gone(where, hint, error) from None


def _gone(where: str, hint: str, error: Exception) -> PositionError:
    said = f"maintenance removed them (`maintenance.vacuum_after`): {hint} ({error})"
    return PositionError(_GONE, where=where, hint=said)
