"""Files that no version needs any more go from the disk, checkpoints of the log in between or not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.lake import delta as lake

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
