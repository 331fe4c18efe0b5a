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

DURATION, COMMITS = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_DAY_S, _WEEK_S = 86_400.0, 7 * 86_400.0
_DEFAULTS = {DURATION: _WEEK_S, COMMITS: 30 * _DAY_S}
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": _DAY_S, "week": _WEEK_S}


def vacuum(table: str, after_s: float) -> None:
    """Deletes files that no version within the retention needs. If that is from a day to a week, those too
    which no commit has named: killed processes left them. (Of a shorter one, they may be of a commit to
    come.)"""
    reach("maintain.vacuum")
    delta = DeltaTable(table)
    if properties := remembered(delta, after_s):
        delta.alter.set_table_properties(properties)
    full = _full(delta, table, after_s)
    DeltaTable(table).vacuum(hours(after_s), dry_run=False, enforce_retention_duration=False, full=full)


def hours(seconds: float) -> int:
    """A retention in hours, at least one: readers and unfinished commits need files for a while."""
    return max(int(seconds // 3600), 1)


def _full(delta: DeltaTable, table: str, after_s: float) -> bool:
    """Whether to look at everything in the folder. For longer than a week the log remembers removals instead
    (`remembered`), unless whoever made the table says that they may be forgotten."""
    if after_s > _WEEK_S <= _known_s(delta, DURATION):
        return False
    return after_s >= _DAY_S and not _holds_others(table)


def remembered(delta: DeltaTable, after_s: float) -> dict[str, str]:
    """Properties that the table is to get, so that its log remembers removals and commits for as long as
    files are kept; none for what whoever made the table says is to be forgotten earlier."""
    wanted_s = (hours(after_s) + 24) * 3600.0
    text = f"interval {hours(after_s) + 24} hours"
    short = (name for name, usual in _USUAL.items() if after_s > usual <= _known_s(delta, name) < wanted_s)
    return dict.fromkeys(short, text)


_USUAL = {DURATION: _WEEK_S, COMMITS: 29 * _DAY_S}
"""Up to which time files can be kept without such a property; what a table has by itself is no shorter."""


def _known_s(delta: DeltaTable, name: str) -> float:
    said = delta.metadata().configuration.get(name)
    return _DEFAULTS[name] if said is None else seconds(said)


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
