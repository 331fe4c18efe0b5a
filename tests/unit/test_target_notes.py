"""Notes of a target that is a database bring into the key log what a crash kept from it, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.keylog.key_log import SCHEMA, KeyLog
from tailrace.keylog.notes import note_of, recover
from tailrace.lake import delta as lake

pytestmark = pytest.mark.unit
T = "s.t"


def key_log(path: str) -> KeyLog:
    return KeyLog(path, app_id="t", run_id="1", at_once=False)


def written(path: str, end: int) -> str:
    """The note of a batch whose process was killed before the key log had its part."""
    rows = pa.table({f.name: pa.nulls(2, f.type) for f in SCHEMA}, schema=SCHEMA)
    files = lake.write_part(path, rows)
    return note_of(T, end, flagged=0, files=files, path=path, life=key_log(path).life, sort=end)


def test_what_a_crash_kept_from_the_key_log_comes_into_it(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    key_log(path).begin(T, 7)
    lake.create(path, SCHEMA)
    log = key_log(path)
    log.begin(T, 7)
    log.flush()
    recover([written(path, 9)], log)
    assert (key_log(path).state(T).progress, lake.read(path).num_rows) == (9, 2)


def test_notes_of_a_task_that_was_dropped_are_none(tmp_path: Path) -> None:
    """The later one has the same name, and a key log at the same place."""
    path = str(tmp_path / "log")
    lake.create(path, SCHEMA)
    old = written(path, 50_000)
    shutil.rmtree(path)
    log = key_log(path)
    log.begin(T, 7)
    log.flush()
    earlier = json.dumps({k: v for k, v in json.loads(old).items() if k != "life"})  # of an earlier release
    recover([old, earlier], key_log(path))
    assert (key_log(path).state(T).progress, lake.read(path).num_rows) == (7, 0)
