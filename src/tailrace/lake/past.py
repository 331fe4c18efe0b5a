"""A Delta table at an older version, if its log and files still exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ..errors import PositionError
from .opened import open_table

_GONE = "files of this version were removed"
LATER = "choose a later position"
"""Hint if an old version cannot be read."""


def at_version(path: str, version: int) -> DeltaTable:
    """Returns the table at a version.

    Raises:
        PositionError: commits that this version needs were removed.
    """
    try:
        return open_table(path, version=version)
    except (DeltaError, FileNotFoundError) as error:
        open_table(path)  # without a table, deltalake's error is raised
        raise _gone(f"{path}, version {version}", LATER, error) from None


@contextmanager
def files_there(where: str, hint: str) -> Iterator[None]:
    """Raises PositionError if files of a version that are read in the block were removed; `hint` says what to
    do."""
    try:
        yield
    except FileNotFoundError as error:
        raise _gone(where, hint, error) from None


def _gone(where: str, hint: str, error: Exception) -> PositionError:
    said = f"{hint}; maintenance removes old files (`maintenance.vacuum_after`) ({error})"
    return PositionError(_GONE, where=where, hint=said)
