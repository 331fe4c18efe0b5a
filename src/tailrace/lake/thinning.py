"""Thins the past of a Delta table: every version of the last hour stays readable, then one version per hour.

A kept version has its commit, a checkpoint, and its data files. Versions between two kept ones lose their
commits, and the files that no kept version has. So every version whose commit exists can be read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from posixpath import basename as base_name
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs

from .failpoints import reach
from .opened import open_table
from .storage import filesystem

HOUR_S = 3600.0
ORPHAN_S = 3 * 86_400.0
"""Age after which data files without a commit are deleted; killed processes leave them."""
_NAME = re.compile(r"(\d{20})\.(json|crc|checkpoint\.(?:[\w-]+\.)*(?:parquet|json))")
_COMMITS, _MONTH_S = "delta.logRetentionDuration", 29 * 86_400.0


@dataclass(frozen=True)
class Past:
    """The part of a table's past that stays readable.

    Attributes:
        until_s: the maximum age of a kept version (seconds).
        times: the maximum bytes of files that only versions older than `every_s` have, as a multiple of the
            newest version's bytes. The steps between versions grow until this holds.
        every_s: the age up to which every version is kept (seconds).
        pinned: versions that are kept as well, up to `until_s`: those of baselines, to which changes are
            applied.
    """

    until_s: float
    times: float = 3.0
    every_s: float = HOUR_S
    pinned: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Log:
    """The log of a table: the time of each commit, and the files of each version's log entry."""

    table: str
    fs: pyarrow.fs.FileSystem
    folder: str
    times: Mapping[int, float]
    files: Mapping[int, Sequence[str]]
    checkpoints: set[int]
    _known: dict[int, dict[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(table: str) -> _Log:
        fs, folder = filesystem(table)
        times, files, checkpoints = dict[int, float](), dict[int, list[str]](), set[int]()
        for one in fs.get_file_info(pyarrow.fs.FileSelector(f"{folder}/_delta_log", allow_not_found=True)):
            if (name := _NAME.fullmatch(one.base_name)) is None:
                continue
            version = int(name[1])
            files.setdefault(version, []).append(one.path)
            if name[2] == "json":
                times[version] = one.mtime.timestamp()
            elif name[2].startswith("checkpoint"):
                checkpoints.add(version)
        return _Log(table, fs, folder, times, files, checkpoints)

    def actions(self, version: int) -> list[dict[str, dict[str, Any]]]:
        """Returns the actions of a version's commit."""
        with self.fs.open_input_stream(f"{self.folder}/_delta_log/{version:020}.json") as file:
            return [json.loads(line) for line in file.read().splitlines() if line.strip()]

    def added(self, version: int) -> set[str]:
        """Returns paths of the data files that a version's commit adds."""
        return {str(one["add"]["path"]) for one in self.actions(version) if "add" in one}

    def data(self, version: int) -> dict[str, int]:
        """Returns the bytes of a version's data files by path."""
        if version not in self._known:
            self._known[version] = _data(self.table, version)
        return self._known[version]

    def delete(self, paths: Collection[str]) -> None:
        """Deletes data files of the table by their paths in commits."""
        for path in sorted(paths):
            if "://" not in path and not path.startswith("/"):  # else a cloned table's files
                delete(self.fs, f"{self.folder}/{unquote(path)}")


def thin(table: str, past: Past, *, now: float | None = None) -> int:
    """Removes the versions of a table that need not stay readable, and returns their number.

    The newest version, all younger than `every_s`, and the newest one before them are always kept. Not for
    tables with deletion vectors.
    """
    log, now = _Log.of(table), time.time() if now is None else now
    old = sorted(v for v, at in log.times.items() if at <= now - past.every_s)
    if len(old) < 2:
        return 0
    last = _with_progress(log, old)
    until = [v for v in old if v <= last]
    kept = kept_versions(
        until, log.times, past, now, sum(log.data(last).values()), partial(_own_bytes, table),
        partial(_with_progress, log),
    )  # fmt: skip
    dropped = [v for v in old if v < last and v not in kept]
    if not dropped:
        return 0
    _remember(table, past.until_s)
    for version in sorted(kept - log.checkpoints):
        open_table(table, version=version).create_checkpoint()
    _point_at(log, max(kept))
    # RESTORE adds files of an old version again, so files that later commits add are kept.
    again = {path for version in log.times if version > last for path in log.added(version)}
    unneeded = _unneeded(log, dropped, sorted(kept)) - again - log.data(max(log.times)).keys()
    first = min(log.times.keys() - set(dropped))
    older = [v for v in log.files if v < first] if first in kept else []  # kept ones have a checkpoint
    for version in sorted({*dropped, *older}):
        reach("maintain.forget")
        for path in log.files[version]:
            delete(log.fs, path)
    log.delete(unneeded)
    return len(dropped)


def _with_progress(log: _Log, versions: Sequence[int]) -> int:
    """Returns the last version that recorded progress; the last of all if none of the last ten did.

    Commits of maintenance and of other writers record none.
    """
    for version in reversed(versions[-10:]):
        if any("txn" in one for one in log.actions(version)):
            return version
    return versions[-1]


def kept_versions(
    old: Sequence[int],
    times: Mapping[int, float],
    past: Past,
    now: float,
    newest_bytes: int,
    own_bytes: Callable[[int, int], int],
    preferred: Callable[[Sequence[int]], int],
) -> set[int]:
    """Returns the old versions of a table that are kept: the last, the first, pinned ones, and one per step
    of time.

    Args:
        old: the versions that are older than `every_s`, in order.
        times: the time of each version.
        past: what is kept.
        now: the current time.
        newest_bytes: the bytes of the last of them.
        own_bytes: returns the bytes of files that a version has and a later one does not.
        preferred: returns the version of a step that is kept.
    """
    young = [v for v in old if times[v] > now - past.until_s]
    step, limit = HOUR_S, past.times * newest_bytes
    while True:
        steps = dict[int, list[int]]()
        for version in young:
            steps.setdefault(int(times[version] // step), []).append(version)
        kept = {old[-1], *young[:1], *past.pinned.intersection(young)}
        kept |= {preferred(one) if len(one) > 1 else one[0] for one in steps.values()}
        # A file that is in two versions is in all versions between them.
        if len(kept) == 1 or sum(own_bytes(*pair) for pair in pairwise(sorted(kept))) <= limit:
            return kept
        step *= 2
        if step > 2 * past.until_s:
            return {old[-1]}


@lru_cache(maxsize=1 << 16)
def _own_bytes(table: str, version: int, later: int) -> int:
    """Returns the bytes of files that a version has and a later one does not."""
    had, has = _data(table, version), _data(table, later)
    return sum(size for path, size in had.items() if path not in has)


def _data(table: str, version: int) -> dict[str, int]:
    """Returns the bytes of a version's data files by path."""
    actions = pa.table(open_table(table, version=version).get_add_actions())
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def _unneeded(log: _Log, dropped: Sequence[int], kept: Sequence[int]) -> set[str]:
    """Returns the paths of data files that dropped versions have and no kept one.

    If neither the kept version before nor the one after has a file, no other kept one does.
    """
    found = set[str]()
    before, bounds = -1, [*kept]
    for after in bounds:
        between = [v for v in dropped if before < v < after]
        files = set[str]()
        for version in between:
            # The first of them after a gap has files from removed versions.
            files |= log.added(version) if version - 1 in log.times else log.data(version).keys()
        if between:
            files -= log.data(after).keys()
            files -= log.data(before).keys() if before >= 0 else set()
        found |= files
        before = after
    return found


def _point_at(log: _Log, version: int) -> None:
    """Makes the log's hint refer to a kept checkpoint."""
    hint = f"{log.folder}/_delta_log/_last_checkpoint"
    try:
        with log.fs.open_input_stream(hint) as file:
            if int(json.loads(file.read())["version"]) >= version:
                return
    except (FileNotFoundError, ValueError, KeyError):
        pass
    with log.fs.open_output_stream(hint) as out:
        out.write(json.dumps({"version": version, "size": len(log.data(version))}).encode())


def _remember(table: str, until_s: float) -> None:
    """Sets the table's retention, so that other writers keep commits as long; by default they remove them
    after 30 days."""
    delta = open_table(table)
    if until_s > _MONTH_S and _COMMITS not in delta.metadata().configuration:
        days = int(until_s // 86_400) + 2
        delta.alter.set_table_properties({_COMMITS: f"interval {days} days"})


def delete(fs: pyarrow.fs.FileSystem, path: str) -> None:
    """Deletes a file if it exists."""
    with suppress(FileNotFoundError):
        fs.delete_file(path)


def sweep(table: str, *, now: float | None = None) -> int:
    """Deletes Parquet files that no commit refers to, once they are three days old, and returns their number.

    Files are compared by name only, because writers encode partition folders differently. Other files are
    kept, such as deletion vectors, which commits reference in another form.
    """
    log, limit = _Log.of(table), (time.time() if now is None else now) - ORPHAN_S
    fs, folder = log.fs, log.folder
    found = fs.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    for part in [one for one in found if one.type == pyarrow.fs.FileType.Directory and "=" in one.base_name]:
        found += fs.get_file_info(pyarrow.fs.FileSelector(part.path, recursive=True))
    old = [
        one.path
        for one in found
        if one.type == pyarrow.fs.FileType.File
        and one.base_name[0] not in "_."
        and one.extension == "parquet"
        and one.mtime.timestamp() < limit
    ]
    if not old or not log.times:  # without commits, this is not our table
        return 0
    named = {base_name(unquote(path)) for path in _named(log, limit + ORPHAN_S - HOUR_S)}
    orphans = [path for path in old if base_name(path) not in named]
    for path in orphans:
        delete(fs, path)
    return len(orphans)


def _named(log: _Log, since: float) -> set[str]:
    """Returns paths of all data files that existing versions have, or that were removed since a time."""
    found = set[str]()
    for version in sorted(log.times):
        if version - 1 not in log.times:
            found |= log.data(version).keys()
        for one in log.actions(version):
            if "add" in one:
                found.add(str(one["add"]["path"]))
            elif "remove" in one and int(one["remove"].get("deletionTimestamp") or 0) >= since * 1000:
                found.add(str(one["remove"]["path"]))
    return found
