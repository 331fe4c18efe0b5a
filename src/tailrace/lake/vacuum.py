"""Deletes the files of a Delta table that no version needs any more.

deltalake looks at the removals that the log tells of or, if it is to be `full`, at everything in the folder.
A checkpoint forgets removals after `delta.deletedFileRetentionDuration`, a week if the table does not say.
So the first leaves files for ever that were removed long before it looks; and the second, for longer than
that, takes some that were removed a moment ago.
"""

from __future__ import annotations

import re

from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from .failpoints import reach
from .parts import filesystem

DURATION = "delta.deletedFileRetentionDuration"
_DAY_S, _WEEK_S = 86_400.0, 7 * 86_400.0
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": _DAY_S, "week": _WEEK_S}


def vacuum(table: str, after_s: float) -> None:
    """Deletes files that no version within the retention needs. If that is from a day to a week, those too
    which no commit has named: killed processes left them. (Of a shorter one, they may be of a commit to
    come.)"""
    reach("maintain.vacuum")
    delta = DeltaTable(table)
    full = _full(delta, table, after_s)
    DeltaTable(table).vacuum(hours(after_s), dry_run=False, enforce_retention_duration=False, full=full)


def hours(seconds: float) -> int:
    """A retention in hours, at least one: readers and unfinished commits need files for a while."""
    return max(int(seconds // 3600), 1)


def _full(delta: DeltaTable, table: str, after_s: float) -> bool:
    """Whether to look at everything in the folder. For longer than a week the log is to remember removals
    instead, unless whoever made the table says that they may be forgotten."""
    if after_s > _WEEK_S and _known_s(delta) >= _WEEK_S:
        if (text := longer(delta, after_s)) is not None:
            delta.alter.set_table_properties({DURATION: text})
        return False
    return after_s >= _DAY_S and not _holds_others(table)


def longer(delta: DeltaTable, after_s: float) -> str | None:
    """How long the log is to remember removals (`DURATION`) that go after more than a week; None: it does, or
    whoever made the table says that it need not."""
    wanted = (hours(after_s) + 24) * 3600
    return f"interval {wanted // 3600} hours" if after_s > _WEEK_S <= _known_s(delta) < wanted else None


def _known_s(delta: DeltaTable) -> float:
    said = delta.metadata().configuration.get(DURATION)
    return _WEEK_S if said is None else seconds(said)


def seconds(interval: str) -> float:
    """An interval of a table's properties; a week if it is written in another way.

    >>> seconds("interval 3 hours"), seconds("interval 1 week") == seconds("P7D")
    (10800.0, True)
    """
    found = _INTERVAL.fullmatch(interval.lower())
    return int(found[1]) * _SECONDS[found[2]] if found else _WEEK_S


def _holds_others(table: str) -> bool:
    """Whether a table's folder has folders that may be tables of their own: a full vacuum would take them
    apart. (It passes over names that begin with `_` or `.`; `column=value` are partitions.)"""
    fs, folder = filesystem(table)
    inside = (one for one in fs.get_file_info(FileSelector(folder)) if one.type == FileType.Directory)
    return any(one.base_name[0] not in "_." and "=" not in one.base_name for one in inside)
