"""How many commits a task's Delta tables keep: `_delta_log` is listed each time a table is opened.

Commits from before a checkpoint are needed by time travel and by streams alone.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time

import pyarrow.fs
from deltalake import DeltaTable

from . import delta as lake
from .failpoints import reach
from .vacuum import DURATION

PROPERTIES = {**lake.PROPERTIES, DURATION: "interval 3 hours"}
"""Settings for tables whose unused files go after an hour: they need not remember them for a week."""
KEPT_S = 3600.0
"""Seconds for which commits and unused files of tables are kept that nobody reads as of an older version."""
_COMMIT = re.compile(r"\d{20}\.json")
_NAME = re.compile(r"(\d{20})\.(json|crc|checkpoint(?:\.\d+\.\d+)?\.parquet)")


def settle(table: str) -> None:
    """Sets the properties that keep checkpoints small on a table of an earlier release."""
    delta = DeltaTable(table)
    if any(delta.metadata().configuration.get(k) != v for k, v in PROPERTIES.items()):
        delta.alter.set_table_properties(dict(PROPERTIES))


def forget(table: str, *, before: int | None = None, older_than_s: float = KEPT_S) -> int:
    """Deletes commits that are older than that and precede a checkpoint; returns the number of files.

    `before`: commits from this version on stay, whatever their age.
    """
    fs, folder = lake.filesystem(table)
    found = fs.get_file_info(pyarrow.fs.FileSelector(f"{folder}/_delta_log", allow_not_found=True))
    named = [(one, name) for one in found if (name := _NAME.fullmatch(one.base_name))]
    end, now = -1, time.time()
    for one, name in named:
        if name[2] == "json" and now - one.mtime.timestamp() > older_than_s:
            end = max(end, int(name[1]))
    end = end if before is None else min(end, before)
    checkpoints = [int(name[1]) for _, name in named if name[2].startswith("checkpoint")]
    start = max((version for version in checkpoints if version <= end), default=-1)
    gone = [one.path for one, name in named if int(name[1]) < start]
    for path in gone:
        reach("maintain.forget")
        fs.delete_file(path)
    return len(gone)


def versions(table: str) -> list[int]:
    """The versions whose own commits exist, in order."""
    fs, folder = lake.filesystem(table)
    found = fs.get_file_info(pyarrow.fs.FileSelector(f"{folder}/_delta_log"))
    return sorted(int(one.base_name[:20]) for one in found if _COMMIT.fullmatch(one.base_name))


def commit_progress(table: str, version: int) -> dict[str, int]:
    """Progress recorded in a version's own commit: app id -> change number."""
    fs, folder = lake.filesystem(table)
    with fs.open_input_stream(f"{folder}/_delta_log/{version:020}.json") as file:
        actions = [json.loads(line) for line in file.read().splitlines() if b'"txn"' in line]
    return {a["txn"]["appId"]: int(a["txn"]["version"]) for a in actions if "txn" in a}


def committed_at(table: str, version: int) -> dt.datetime:
    """When a version was committed, by the writer's clock, or the storage's if the commit does not say."""
    fs, folder = lake.filesystem(table)
    path = f"{folder}/_delta_log/{version:020}.json"
    with fs.open_input_stream(path) as file:
        actions = [json.loads(line) for line in file.read().splitlines()]
    stamps = [a["commitInfo"]["timestamp"] for a in actions if "timestamp" in a.get("commitInfo", {})]
    at = stamps[0] / 1000 if stamps else fs.get_file_info(path).mtime.timestamp()
    return dt.datetime.fromtimestamp(at, dt.timezone.utc)
