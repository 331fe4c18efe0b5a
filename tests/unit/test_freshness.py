"""`freshness` and `cost`: how long changes are gathered before they are written."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.lake import json_files
from tailrace.runtime.freshness import FreshnessControl
from tailrace.state.intervals import interval_in_force, interval_of
from tailrace.state.ledger import AppliedTable, Stored

pytestmark = pytest.mark.unit
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def task_of(folder: Path, more: str = "") -> Task:
    file = folder / "shop.yaml"
    file.write_text(f"name: shop\nsource: {{url: 'postgresql://db/shop'}}\ntarget: {{path: lake}}\n{more}")
    return load(file)


class Running:
    """A task that runs: its clock, the processor time that it uses, and what it writes."""

    def __init__(self, task: Task) -> None:
        self.now = self.cpu = 0.0
        self.control = FreshnessControl(task, task.target_path, clock=lambda: self.now, cpu=lambda: self.cpu)
        self.control.adapt()

    def second(self, *, cpu: float = 0.0, changes: int = 10, commits: int = 0, size: int = 1000) -> None:
        """One second of work: processor seconds, changes, commits of LOG (two files each)."""
        self.now, self.cpu = self.now + 1, self.cpu + cpu
        counts = {"s.t": {"rows": changes, "bytes": size}}
        self.control.stored(Stored(1, "", "", NOW, counts), commits)
        self.control.applied([AppliedTable("s.t", 1, 0, 0, 0, 0, "merge", 0.1)])
        self.control.adapt()


def described(task: Running) -> tuple[object, ...]:
    return tuple(task.control.describe()[name] for name in ("interval", "reason", "tables"))


def test_interval_that_is_set_is_the_one_that_status_shows(tmp_path: Path) -> None:
    task = Running(task_of(tmp_path, "freshness: 30s\n"))
    assert described(task) == (30.0, None, {})


def test_interval_grows_while_the_task_uses_more_processor_time_than_it_may(tmp_path: Path) -> None:
    task = Running(task_of(tmp_path, "cost: {cpu: 25%}\n"))
    for _ in range(120):
        task.second(cpu=0.5)
    assert described(task) == (15.0, "processor time", {})
    for _ in range(200):
        task.second(cpu=0.05)
    assert described(task) == (1.0, None, {})


def test_interval_settles_where_the_budget_is_used(tmp_path: Path) -> None:
    task = Running(task_of(tmp_path, "cost: {files: 10}\n"))
    for _ in range(300):  # each batch writes 40 files
        task.second()
        task.control.stored(Stored(1, "", "", NOW, {}), round(20 / task.control.interval))
    assert 3.5 <= task.control.interval <= 6
    assert task.control.describe()["reason"] == "files"


def test_large_batches_do_not_make_the_interval_grow(tmp_path: Path) -> None:
    task = Running(task_of(tmp_path))
    for _ in range(60):
        task.second(cpu=2.0, changes=100_000)
    assert task.control.interval == 1.0


def test_a_table_that_is_expensive_to_write_waits_longer_than_the_others(tmp_path: Path) -> None:
    running = Running(task_of(tmp_path))
    task = running.control.task
    for table, rows in (("s.large", 3_000_000), ("s.small", 10)):
        path = task.target_path(table)
        files = lake.write_part(path, pa.table({"n": pa.array(range(rows), pa.int64())}))
        lake.create(path, pa.schema([("n", pa.int64())]))
        lake.commit(path, files, progress={})
        running.control.applied([AppliedTable(table, 1, 0, 0, 0, 0, "merge", 0.1)])
    assert running.control.interval_of_table("s.large") > 5
    assert running.control.interval_of_table("s.small") == 1.0
    assert running.control.describe()["tables"]["s.large"]["reason"] == "target writes"


def test_interval_that_is_set_holds_for_the_task_a_group_and_a_table(tmp_path: Path) -> None:
    task = task_of(
        tmp_path,
        "freshness: 30s\ngroups: {facts: {tables: ['dw.*'], freshness: 5m}}\n"
        "tables: {dw.day: {freshness: auto}, 'dw.now': {freshness: 2s}}\n",
    )
    assert [interval_of(task, t) for t in ("s.t", "dw.f", "dw.day", "dw.now")] == [30.0, 300.0, None, 2.0]
    assert interval_in_force(task) == 1.0  # `auto`, as fresh as possible


def test_capture_commits_at_the_interval_that_the_pipeline_reports(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert interval_in_force(task) == 1.0
    json_files.write(task.run_path, "pipeline", {"state": "running", "freshness": {"automatic": 7.5}})
    assert interval_in_force(task) == 7.5
    json_files.write(task.run_path, "pipeline", {"state": "stopped", "freshness": {"automatic": 7.5}})
    assert interval_in_force(task) == 1.0
