"""Deletes replaced and removed files of a Delta table."""

from __future__ import annotations

from urllib.parse import unquote

from .failpoints import reach
from .opened import open_table
from .storage import filesystem
from .thinning import delete

DURATION = "delta.deletedFileRetentionDuration"


def vacuum(table: str, after_s: float) -> None:
    """Deletes files that no version younger than `after_s` (at least an hour) needs, if the log still lists
    them as removed.

    That is three hours by the properties of tailrace's tables; `sweep` deletes others.
    """
    reach("maintain.vacuum")
    fs, folder = filesystem(table)
    unneeded = open_table(table).vacuum(hours(after_s), dry_run=True, enforce_retention_duration=False)
    for path in unneeded:
        delete(fs, f"{folder}/{unquote(path)}")


def hours(seconds: float) -> int:
    """Returns a retention in hours, at least one: readers and unfinished commits need files for a while."""
    return max(int(seconds // 3600), 1)
