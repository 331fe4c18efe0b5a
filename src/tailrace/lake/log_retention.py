"""Retention of commits in the logs of Delta tables that are not read at older versions.

Commits before a checkpoint are needed only for time travel and streams.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time

import pyarrow.fs

from ..model.positions import order_key
from . import delta as lake
from .failpoints import reach
from .thinning import sweep

KEPT_S = 3600.0
"""Seconds for which commits and unused files of such tables are kept."""
MAX_COMMITS = 3600
"""The maximum number of commits in a log, whatever their age, because each commit lists the whole log."""
_COMMIT = re.compile(r"\d{20}\.json")
_NAME = re.compile(r"(\d{20})\.(json|crc|checkpoint(?:\.\d+\.\d+)?\.parquet)")


def forget(
    table: str, *, before: int | None = None, older_than_s: float = KEPT_S, most: int = MAX_COMMITS
) -> int:
    """Deletes commits before a checkpoint that are older than `older_than_s`, or not among the last `most`.

    Returns the number of deleted files. Commits from version `before` on are kept.
    """
    fs, folder = lake.filesystem(table)
    found = fs.get_file_info(pyarrow.fs.FileSelector(f"{folder}/_delta_log", allow_not_found=True))
    named = [(one, name) for one in found if (name := _NAME.fullmatch(one.base_name))]
    now = time.time()
    commits = {int(name[1]): now - one.mtime.timestamp() for one, name in named if name[2] == "json"}
    old = (version for version, age in commits.items() if age > older_than_s)
    end = max(max(old, default=-1), max(commits, default=-1) - most)
    end = end if before is None else min(end, before)
    checkpoints = [int(name[1]) for _, name in named if name[2].startswith("checkpoint")]
    start = max((version for version in checkpoints if version <= end), default=-1)
    gone = [one.path for one, name in named if int(name[1]) < start]
    for path in gone:
        reach("maintain.forget")
        fs.delete_file(path)
    return len(gone)


def tidy(table: str) -> None:
    """Deletes old commits, and files that only they refer to, of a small table that is rewritten often."""
    forget(table)
    sweep(table)


def versions(table: str) -> list[int]:
    """Returns the versions whose commits exist, in order."""
    fs, folder = lake.filesystem(table)
    found = fs.get_file_info(pyarrow.fs.FileSelector(f"{folder}/_delta_log"))
    return sorted(int(one.base_name[:20]) for one in found if _COMMIT.fullmatch(one.base_name))


def version_after(table: str, app: str, number: int | None) -> int:
    """Returns the first version in which an application's progress exceeds a number, or the newest.

    None gives the first version of all. Few commits are read.
    """
    listed = versions(table)
    low, high = 0, len(listed) - 1
    while low < high:
        middle = (low + high) // 2
        # A maintenance commit records no progress; the previous commit's progress applies.
        commits = (commit_progress(table, listed[k]) for k in range(middle, low - 1, -1))
        reached = next((found[app] for found in commits if app in found), 0)
        low, high = (low, middle) if reached > order_key(number) else (middle + 1, high)
    return listed[low]


def commit_progress(table: str, version: int) -> dict[str, int]:
    """Returns the progress recorded in a version's commit: change number by application id."""
    fs, folder = lake.filesystem(table)
    with fs.open_input_stream(f"{folder}/_delta_log/{version:020}.json") as file:
        actions = [json.loads(line) for line in file.read().splitlines() if b'"txn"' in line]
    return {a["txn"]["appId"]: int(a["txn"]["version"]) for a in actions if "txn" in a}


def committed_at(table: str, version: int) -> dt.datetime:
    """Returns when a version was committed, by the writer's clock, or by the storage's if the commit has no
    time."""
    fs, folder = lake.filesystem(table)
    path = f"{folder}/_delta_log/{version:020}.json"
    with fs.open_input_stream(path) as file:
        actions = [json.loads(line) for line in file.read().splitlines()]
    stamps = [a["commitInfo"]["timestamp"] for a in actions if "timestamp" in a.get("commitInfo", {})]
    at = stamps[0] / 1000 if stamps else fs.get_file_info(path).mtime.timestamp()
    return dt.datetime.fromtimestamp(at, dt.timezone.utc)
