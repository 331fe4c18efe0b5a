"""Removes whole partitions of change tables that have ended and been read: one folder each (spec/qlik.md
§3).

A partition's folder gets a hidden name first, which no reader looks at, and is deleted then: so a reader has
all of it or nothing, and what a crash leaves the next call takes away. Rows of attrep_cdc_partitions stay:
they say what there was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

import pyarrow.fs

from ...errors import ConfigError, FormatError
from ...lake.delta import filesystem
from ...model.patterns import fits
from ...model.sequence import WIDTH
from .partitions import of_folder

_GONE = ".gone-"
_TIME = "%Y%m%dT%H%M%S"


@dataclass(frozen=True)
class DroppedPartitions:
    """A change table's partitions that were (or would be) removed, and those that are kept for a consumer,
    with its name."""

    table: str
    partitions: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def has_partitions(folder: str) -> bool:
    """Whether there are partitions below a folder."""
    return bool(_found(*filesystem(folder)))


def time_of(change_seq: str) -> datetime:
    """When the transaction of a change was committed, to the second.

    >>> time_of("20260102030405060000000000000000007").isoformat()
    '2026-01-02T03:04:05+00:00'
    """
    if len(change_seq) != WIDTH or not change_seq.isdecimal():
        raise ConfigError(f"{change_seq!r} is not a change_seq", hint=f"it has {WIDTH} digits")
    return _parsed(f"{change_seq[:8]}T{change_seq[8:14]}", change_seq)


def drop_partitions(
    folder: str,
    before: datetime,
    consumers: Mapping[str, str],
    *,
    tables: Sequence[str] = (),
    dry_run: bool = False,
) -> list[DroppedPartitions]:
    """Removes the partitions of the change tables in a folder that end at or before a time.

    Args:
        folder: a change table's folder, or one of change tables.
        before: a time that is over.
        consumers: every consumer -> the last `change_seq` it has done with. A partition stays while one has
            not come to its end.
        tables: only folders of change tables with names like one of these; with `*` and `?`.
        dry_run: say what would go.

    Raises:
        ConfigError: a consumer's `change_seq` is none.
        FormatError: the name of a partition tells no times.
    """
    reached = {name: time_of(seq) for name, seq in consumers.items()}
    limit = min(before, datetime.now(timezone.utc))
    fs, root = filesystem(folder)
    made: dict[str, DroppedPartitions] = {}
    for path in _found(fs, root):
        parent, _, last = path.rpartition("/")
        name = parent.rpartition("/")[2]
        if tables and not fits(name, *tables):
            continue
        one = made.setdefault(name, DroppedPartitions(name))
        if last.startswith(_GONE):
            if not dry_run:
                fs.delete_dir(path)
            continue
        partition = of_folder(last) or ""
        end = _parsed(partition.partition("_")[2], path)
        behind = min((n for n in reached if reached[n] < end), key=lambda n: reached[n], default=None)
        if end > limit:
            continue
        if behind is not None:
            one.held[partition] = behind
            continue
        one.partitions.append(partition)
        if not dry_run:
            fs.move(path, f"{parent}/{_GONE}{last}")
            fs.delete_dir(f"{parent}/{_GONE}{last}")
    return [made[name] for name in sorted(made)]


def _found(fs: pyarrow.fs.FileSystem, root: str) -> list[str]:
    """Folders of partitions below a folder, and leftovers of removed ones; in order."""
    chosen = pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True)
    folders = [f for f in fs.get_file_info(chosen) if f.type == pyarrow.fs.FileType.Directory]
    return sorted(f.path for f in folders if of_folder(f.base_name.removeprefix(_GONE)))


def _parsed(text: str, where: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        raise FormatError(f"{text!r} is not a time", where=where) from None
