"""Handles Change Data Partitioning: names of partitions, which of them are closed, and the removal of
partitions that have ended and been read; each is one folder (spec/qlik.md §3).

The folder of a removed partition is first renamed to a hidden name, which no reader reads, and then deleted:
so a reader sees all of it or nothing, and the next call removes the remains after a crash. Rows of
attrep_cdc_partitions stay as a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow.fs

from ...errors import ConfigError, FormatError
from ...lake.storage import filesystem
from ...model.patterns import fits
from ...model.sequence import WIDTH
from ..spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = r"\d{8}T\d{6}_\d{8}T\d{6}"
TABLE = "attrep_cdc_partitions"
_FOLDER = re.compile(rf"(?:[^/=]+=)?({NAME})")
_FORMAT = "yyyyMMdd'T'HHmmss"


def of_folder(folder: str) -> str | None:
    """Returns the partition in a folder's name, plain or in Hive's form.

    >>> of_folder("header__partition_name=20170313T123000_20170313T170000")
    '20170313T123000_20170313T170000'
    >>> of_folder("dbo.item__ct") is None
    True
    """
    found = _FOLDER.fullmatch(folder)
    return found[1] if found else None


def name_of(change_seq: Column, minutes: int) -> Column:
    """Returns the partition of a change: intervals of `minutes` of its commit time, counted from 1970
    (UTC)."""
    at = F.unix_timestamp(F.try_to_timestamp(F.substring(change_seq, 1, 14), F.lit("yyyyMMddHHmmss")))
    start = F.floor(at / (60 * minutes)) * (60 * minutes)
    ends = [F.date_format(F.timestamp_seconds(s), _FORMAT) for s in (start, start + 60 * minutes)]
    return F.concat_ws("_", *ends)


def times_of(name: Column) -> tuple[Column, Column]:
    """Returns the start and end of a partition, from its name."""
    start, end = F.split_part(name, F.lit("_"), F.lit(1)), F.split_part(name, F.lit("_"), F.lit(2))
    return F.try_to_timestamp(start, F.lit(_FORMAT)), F.try_to_timestamp(end, F.lit(_FORMAT))


def closed(control: DataFrame | None, table: str, suffix: str) -> list[str]:
    """Returns the closed partitions of a source table: those in attrep_cdc_partitions, which may contain the
    name of the table or its change table, and may list a partition several times. They are collected: one per
    interval.

    Raises:
        ConfigError: the control table is missing.
    """
    if control is None:
        raise ConfigError(
            f"partitions=closed needs the table {TABLE}", where=table, hint="give it, or read partitions=all"
        )
    owner, dot, plain = table.rpartition(".")
    names = [plain.lower(), (plain + suffix).lower()]
    rows = control.filter(F.lower("TABLE_NAME").isin(names))
    if dot:
        rows = rows.filter(F.col("TABLE_OWNER").isNull() | (F.lower("TABLE_OWNER") == owner.lower()))
    return sorted(r[0] for r in rows.select("PARTITION_NAME").distinct().collect() if r[0])


def states(changes: DataFrame, name: str, closed: list[str]) -> DataFrame:
    """Returns the partitions of a table's rows: `partition_name`, `started`, `ends` (from the name) and
    whether it is `closed`. `name` is the column of the partition's name; needs one shuffle of names."""
    started, ends = times_of(F.col("partition_name"))
    done = F.col("partition_name").isin(closed) if closed else F.lit(False)
    rows = changes.select(F.col(name).alias("partition_name")).distinct()
    return rows.select("partition_name", started.alias("started"), ends.alias("ends"), done.alias("closed"))


_GONE = ".gone-"
_TIME = "%Y%m%dT%H%M%S"


@dataclass(frozen=True)
class DroppedPartitions:
    """A change table's partitions that were (or would be) removed, and those that are kept for a consumer,
    with the consumer's name."""

    table: str
    partitions: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns the result for `--json`."""
        return asdict(self)


def has_partitions(folder: str) -> bool:
    """Whether there are partitions below a folder."""
    return bool(_found(*filesystem(folder)))


def time_of(change_seq: str) -> datetime:
    """Returns the time when a change's transaction was committed, to the second.

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
        folder: a change table's folder, or a folder of change tables.
        before: a time in the past.
        consumers: every consumer -> the last `change_seq` that it has processed. A partition stays until all
            consumers have reached its end.
        tables: only folders of change tables with names like one of these; with `*` and `?`.
        dry_run: report what would be removed.

    Raises:
        ConfigError: a consumer's `change_seq` is invalid.
        FormatError: the name of a partition has no times.
    """
    reached = {name: time_of(seq) for name, seq in consumers.items()}
    limit = min(before, datetime.now(timezone.utc))
    fs, root = filesystem(folder)
    result: dict[str, DroppedPartitions] = {}
    for path in _found(fs, root):
        parent, _, last = path.rpartition("/")
        name = parent.rpartition("/")[2]
        if tables and not fits(name, *tables):
            continue
        one = result.setdefault(name, DroppedPartitions(name))
        if last.startswith(_GONE):
            if not dry_run:
                fs.delete_dir(path)
            continue
        partition = of_folder(last) or ""
        end = _parsed(partition.partition("_")[2], path)
        waiting = min((n for n in reached if reached[n] < end), key=lambda n: reached[n], default=None)
        if end > limit:
            continue
        if waiting is not None:
            one.held[partition] = waiting
            continue
        one.partitions.append(partition)
        if not dry_run:
            fs.move(path, f"{parent}/{_GONE}{last}")
            fs.delete_dir(f"{parent}/{_GONE}{last}")
    return [result[name] for name in sorted(result)]


def _found(fs: pyarrow.fs.FileSystem, root: str) -> list[str]:
    """Returns folders of partitions below a folder, and remains of removed ones; in order."""
    chosen = pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True)
    folders = [f for f in fs.get_file_info(chosen) if f.type == pyarrow.fs.FileType.Directory]
    return sorted(f.path for f in folders if of_folder(f.base_name.removeprefix(_GONE)))


def _parsed(text: str, where: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        raise FormatError(f"{text!r} is not a time", where=where) from None
