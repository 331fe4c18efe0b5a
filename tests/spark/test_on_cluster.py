"""Batches for large targets with separate executor processes: the same as with threads, and all of them work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .on_master import applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def applied_on(master: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spark.on_master", master, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_rows_outcomes_and_key_log_are_the_same_and_both_executors_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    here = json.loads(json.dumps(applied(spark, tmp_path / "here")))
    there = applied_on("local-cluster[2,1,2048]", tmp_path / "there")
    assert there["found"] == here
    assert here["in place"]["outcome"] == [1, 999, 2, "rewrite"]
    assert here["rules"]["outcome"] == [
        1_002, {"I": 0, "U": 1_001, "D": 1, "T": 0}, {"update_missing": 1}, 1, "rewrite",
    ]  # fmt: skip
    assert [len(here["rules"]["key log"]), len(here["rules"]["rows"])] == [1_002, 3_999]
    executors = {name: many for name, many in there["tasks"].items() if name != "driver"}
    assert len(executors) == 2
    assert all(executors.values()), executors
