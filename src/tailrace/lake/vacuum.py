"""Deletes the files of a Delta table that were replaced or removed some time ago."""

from __future__ import annotations

from urllib.parse import unquote

from deltalake import DeltaTable

from .failpoints import reach
from .parts import filesystem
from .thinning import delete

DURATION = "delta.deletedFileRetentionDuration"


def vacuum(table: str, after_s: float) -> None:
    """Deletes files that no version younger than that needs (an hour at least), as far as the log remembers
    that they were removed: three hours by the properties of our tables. `sweep` deletes what it has
    forgotten."""
    reach("maintain.vacuum")
    fs, folder = filesystem(table)
    unneeded = DeltaTable(table).vacuum(hours(after_s), dry_run=True, enforce_retention_duration=False)
    for path in unneeded:
        delete(fs, f"{folder}/{unquote(path)}")


def hours(seconds: float) -> int:
    """A retention in hours, at least one: readers and unfinished commits need files for a while."""
    return max(int(seconds // 3600), 1)
