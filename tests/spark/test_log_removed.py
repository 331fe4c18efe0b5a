"""LOG that somebody else took files or versions of: the pipeline stops, and says what is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tailrace.config.task import Task, read
from tailrace.errors import PositionError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.runtime.pipeline import Pipeline
from tailrace.store.kept import spans

from ..unit.messages import insert
from ..unit.test_log_and_store import chunk

pytestmark = pytest.mark.spark

TEXT = """
name: t
source: {url: 'postgresql://localhost/shop'}
baseline: {enabled: false}
maintenance: {every: 1d}
"""


def task_of(tmp_path: Path) -> Task:
    task = read(TEXT, tmp_path)
    assert isinstance(task, Task)
    return task


def capture(task: Task, *ids: int) -> None:
    """One transaction of three records for each id."""
    writer = log.LogWriter(task.log_path, task.relations_path)
    for k in ids:
        writer.add(chunk(100 * k, b"B", insert(7, [k, "1"]), b"C"))
        writer.commit()


def part_of(task: Task, number: int) -> Path:
    """The file of LOG with a change number."""
    mine = [s for s in spans(DeltaTable(task.log_path), "CHANGE_SEQ") if s.low <= number <= s.high]
    return Path(task.log_path) / mine[0].path


def test_what_is_gone_of_log_stops_the_pipeline(spark, tmp_path):
    task = task_of(tmp_path)
    capture(task, 1, 2)
    Pipeline(task, spark).drain()
    capture(task, 3, 4, 5)

    # a file
    part = part_of(task, 10)
    aside = part.rename(tmp_path / "aside.parquet")
    with pytest.raises(PositionError, match="LOG has lost records that were not stored yet: 10 to 12\n"):
        Pipeline(task, spark).drain()
    aside.rename(part)

    # the commit of a version: what Delta's own checkpoint knows of it is enough
    commit = Path(task.log_path) / "_delta_log" / f"{lake.version(task.log_path) - 2:020d}.json"
    DeltaTable(task.log_path).create_checkpoint()
    commit.unlink()
    Pipeline(task, spark).drain()
    assert sorted(lake.read(task.changes_path("shop.item"))["id"].to_pylist()) == [1, 2, 3, 4, 5]

    # all of it, and capture began another
    shutil.rmtree(task.log_path)
    capture(task, 6)
    with pytest.raises(PositionError, match="LOG ends at change number 3, but it was stored up to 15\n"):
        Pipeline(task, spark).drain()
