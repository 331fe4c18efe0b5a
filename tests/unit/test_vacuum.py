"""Files that no version needs any more go from the disk, checkpoints of the log in between or not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tailrace.errors import PositionError
from tailrace.lake import delta as lake
from tailrace.lake.past import at_version
from tailrace.lake.vacuum import COMMITS, DURATION

pytestmark = pytest.mark.unit
WEEK = 7 * 86_400.0


def aged(folder: Path, days: float) -> None:
    """Makes all that is there older: files, and the removals that the log tells of."""
    then = time.time() - days * 86_400
    for one in folder.rglob("*"):
        if one.suffix == ".json":
            lines = [json.loads(line) for line in one.read_text().splitlines()]
            for line in lines:
                if "remove" in line:
                    line["remove"]["deletionTimestamp"] = int(then * 1000)
            one.write_text("\n".join(map(json.dumps, lines)) + "\n")
        os.utime(one, (then, then))


def aged_log(folder: Path, days: float) -> None:
    """Makes the removals older that the log tells of."""
    times = {one: one.stat() for one in folder.rglob("*.parquet")}
    aged(folder, days)
    for one, was in times.items():
        os.utime(one, (was.st_atime, was.st_mtime))


@pytest.mark.parametrize("commits", [1, 15])
def test_what_was_removed_long_ago(tmp_path: Path, commits: int) -> None:
    path = str(tmp_path / "t")
    for n in (1, 2):
        lake.append(path, pa.table({"id": [n]}))
    DeltaTable(path).optimize.compact()
    (tmp_path / "t" / "part-of-a-killed-process.parquet").write_bytes(b"")
    aged(tmp_path / "t", 8)
    for n in range(commits):
        lake.append(path, pa.table({"id": [10 + n]}))
    DeltaTable(path).create_checkpoint()
    (tmp_path / "t" / "part-of-a-commit-to-come.parquet").write_bytes(b"")
    lake.vacuum(path, WEEK)
    there = {one.name for one in Path(path).glob("*.parquet")} - {"part-of-a-commit-to-come.parquet"}
    assert there == {Path(p).name for p in DeltaTable(path).file_uris()}
    assert (Path(path) / "part-of-a-commit-to-come.parquet").exists()


def test_a_short_time_touches_no_file_that_the_log_does_not_tell_of(tmp_path: Path) -> None:
    """LOG's files go after an hour; a transaction may come for longer."""
    path = str(tmp_path / "t")
    lake.append(path, pa.table({"id": [1]}))
    (tmp_path / "t" / "part-of-a-long-transaction.parquet").write_bytes(b"")
    aged(tmp_path / "t", 0.5)
    lake.vacuum(path, 3600.0)
    assert (Path(path) / "part-of-a-long-transaction.parquet").exists()


def test_longer_than_a_week_what_was_removed_a_week_ago_stays(tmp_path: Path) -> None:
    """Of a file that is older than that; the log remembers removals from now on."""
    path, folder = str(tmp_path / "t"), tmp_path / "t"
    lake.append(path, pa.table({"id": [1]}))
    aged(folder, 60)
    DeltaTable(path).delete("id = 1")
    aged_log(folder, 8)
    lake.append(path, pa.table({"id": [2]}))
    DeltaTable(path).create_checkpoint()
    for _ in range(2):
        lake.vacuum(path, 30 * 86_400.0)
        assert len(list(folder.glob("*.parquet"))) == 2
    assert DeltaTable(path).metadata().configuration[DURATION] == "interval 744 hours"


def test_longer_than_a_month_the_log_keeps_its_commits(tmp_path: Path) -> None:
    path, folder = str(tmp_path / "t"), tmp_path / "t"
    for n in range(3):
        lake.append(path, pa.table({"id": [n]}))
    lake.vacuum(path, 90 * 86_400.0)
    assert DeltaTable(path).metadata().configuration[COMMITS] == "interval 2184 hours"
    aged(folder, 60)
    delta = DeltaTable(path)
    delta.create_checkpoint()
    delta.cleanup_metadata()
    assert at_version(path, 1).version() == 1


def test_a_version_whose_commits_are_gone(tmp_path: Path) -> None:
    path, folder = str(tmp_path / "t"), tmp_path / "t"
    for n in range(3):
        lake.append(path, pa.table({"id": [n]}))
    newest = DeltaTable(path).version()
    DeltaTable(path).create_checkpoint()
    for version in range(newest):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert at_version(path, newest).version() == newest
    for version in range(newest):
        with pytest.raises(PositionError, match="files of this version are gone") as error:
            at_version(path, version)
        assert f"version {version}" in str(error.value) and "vacuum_after" in str(error.value)
    with pytest.raises(TableNotFoundError):
        at_version(str(tmp_path / "none"), 0)


def test_tables_inside_of_another_ones_folder(tmp_path: Path) -> None:
    outer, inner = str(tmp_path / "t"), str(tmp_path / "t" / "inner")
    for path in (outer, inner):
        lake.append(path, pa.table({"id": [1]}))
    aged(tmp_path / "t", 30)
    lake.vacuum(outer, WEEK)
    assert lake.read(inner).num_rows == 1
