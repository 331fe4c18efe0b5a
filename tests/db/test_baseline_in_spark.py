"""Spark's tasks read the parts of tables: of a session of the same process, and for capture, which has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.capture import part_requests
from tailrace.capture.part_readers import PartLoad, PartReaders
from tailrace.capture.part_requests import reading_for_capture
from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import CancelledError
from tailrace.execution import JobCount, counted
from tailrace.lake import delta as lake
from tailrace.lake import json_files
from tailrace.lake.objects import Objects
from tailrace.model.types import schema_of
from tailrace.runtime.pipeline import Pipeline
from tailrace.state.baselines import read_baselines

from .reading import Make
from .test_running import meanwhile, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.db, pytest.mark.spark]
_COPIES = (
    "select count(*) from pg_stat_activity where datname = current_database() and state = 'active'"
    " and query like 'COPY (SELECT%'"
)


@contextmanager
def most_readers(url: str) -> Iterator[list[int]]:
    """The largest number of connections that read parts at the same time within the block."""
    over, most = threading.Event(), [0]

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as session:
            while not over.wait(0.002):
                ((now,),) = session.execute(_COPIES).fetchall()
                most[0] = max(most[0], now)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def done() -> JobCount:
    return counted().get("baseline", JobCount())


def test_tasks_of_a_session_read_parts_at_a_snapshot(
    db: psycopg.Connection, database: str, make: Make, tmp_path: Path, spark: SparkSession
) -> None:
    """As many at once as there may be connections."""
    db.execute("create schema s; create table s.t (id int primary key, v text)")
    db.execute("insert into s.t select i, repeat('x', 200) from generate_series(1, 30000) i; analyze s.t")
    source, before = make(), done()
    relation = source.relation("s.t")
    lake.create(str(tmp_path), schema_of(relation.columns))
    with source.snapshot() as snapshot, most_readers(database) as most, PartReaders(1, spark) as readers:
        db.execute("delete from s.t where id > 10")
        load = PartLoad(source.part_reader(), snapshot, relation, str(tmp_path), keep_bad=False)
        loads = [readers.load(load, part) for part in source.parts(relation, 5000)]
        files = [added for one in loads if (added := one.result().added)]
    lake.commit(str(tmp_path), files, progress={})
    assert sorted(lake.read(str(tmp_path))["id"].to_pylist()) == list(range(1, 30001))
    assert (len(files), most) == (len(loads), [1]) and len(loads) > 5
    assert (done().jobs - before.jobs, done().in_driver - before.in_driver) == (1, 0)


BOTH = pytest.mark.parametrize("task", ["delta", "postgresql"], indirect=True)


@pytest.fixture
def task(request: pytest.FixtureRequest, tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    """A large table and some small ones; the target is a Delta table if the test does not say another."""
    db.execute("create schema s; create table s.t (id int primary key, v text)")
    db.execute("insert into s.t select i, repeat('x', 200) from generate_series(1, 30000) i; analyze s.t")
    for name in "abc":
        db.execute(f"create table s.{name} (id int primary key); insert into s.{name} values (1), (2)")
    delta = getattr(request, "param", "delta") == "delta"
    target = "{path: lake}" if delta else f"'{database}&schema=lake'"
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: ['s.*']}}\ntarget: {target}\n"
        "baseline: {workers: 2, rows_per_part: 4000}\nspark: {start: at_once}\n"
    )
    return load(file)


def ids(task: Task, db: psycopg.Connection, table: str) -> list[int]:
    if task.target.database:
        return [row[0] for row in db.execute(f"select id from lake.{table} order by 1")]
    return sorted(lake.read(task.target_path(f"s.{table}"), ["id"])["id"].to_pylist())


def complete(task: Task, db: psycopg.Connection) -> bool:
    return ids(task, db, "t") == list(range(1, 30001)) and all(ids(task, db, t) == [1, 2] for t in "abc")


def left(task: Task) -> list[str]:
    return [file.name for file in (Path(task.run_path) / "parts").iterdir()]


@BOTH
def test_tasks_of_another_process_read_for_capture(
    task: Task, db: psycopg.Connection, database: str, spark: SparkSession
) -> None:
    """All tables that wait in one job, or a few."""
    before = done()
    with reading_for_capture(task, spark), most_readers(database) as most:
        Capture(task, once=True).run()
        assert left(task) == ["reader.json"]
    assert complete(task, db) and left(task) == []
    jobs, tasks = done().jobs - before.jobs, done().tasks - before.tasks
    assert 1 <= jobs <= 3 and tasks >= 8 and most[0] <= 2


def test_what_a_job_could_not_read_capture_reads(
    task: Task, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some parts were read by then, of one nobody heard. No row is lost or doubled."""

    def lost(work: Callable[[Any], int], inputs: Sequence[Any], **_: object) -> list[int]:
        for one in inputs[:3]:
            assert work(one) > 0 == work(one)  # once
        Path(one.folder, f"{one.request}.{one.number}.json").unlink(missing_ok=True)
        raise RuntimeError("all executors are gone")

    monkeypatch.setattr(part_requests, "map_tasks", lost)
    with reading_for_capture(task, None):  # type: ignore[arg-type]
        Capture(task, once=True).run()
    assert complete(task, db) and left(task) == []
    assert any("RuntimeError: all executors are gone" in one for one in caplog.messages)


def test_a_job_that_is_cancelled_because_the_task_ends_is_not_done_by_capture(
    task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()

    def cancelled(*_: object, **__: object) -> None:
        threading.Timer(0.3, stop.set).start()
        raise CancelledError("the job was cancelled")

    monkeypatch.setattr(part_requests, "map_tasks", cancelled)
    with reading_for_capture(task, None):  # type: ignore[arg-type]
        Capture(task, once=True, stop=stop).run()
    # Capture itself reads the tables of two rows, if they arrive 0.1 s before the large one.
    assert "s.t" not in read_baselines(task.control_path("baselines"))
    assert (left(task), [one for one in caplog.messages if "Spark has not" in one]) == ([], [])


def test_capture_does_not_wait_for_a_process_that_is_gone(
    task: Task, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def last_beat(*_: object) -> float:
        return 0.0 if left(task) == ["reader.json"] else 99.0  # it died when it was asked

    monkeypatch.setattr(Objects, "age", last_beat)
    json_files.write(Path(task.run_path) / "parts", "reader", {"state": "ready"})
    Capture(task, once=True).run()
    assert complete(task, db) and left(task) == ["reader.json"]
    assert any("its process has ended" in one for one in caplog.messages)


@BOTH
def test_tasks_take_the_rows_of_a_mapped_table_to_its_target(
    task: Task, db: psycopg.Connection, spark: SparkSession
) -> None:
    with (task.folder / "shop.yaml").open("a") as file:
        file.write("tables: {s.t: {target: s.m, drop: [v]}}\n")
    task = load(task.folder / "shop.yaml")
    Capture(task, once=True).run()
    before = done()
    Pipeline(task, spark).drain()
    assert ids(task, db, "m") == list(range(1, 30001))
    assert (done().jobs - before.jobs, done().in_spark - before.in_spark) == (1, 30000)


@pytest.mark.slow
def test_a_pipeline_that_is_killed_while_it_reads(
    task: Task, db: psycopg.Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some parts have been read, one is being read. Capture reads the others, and that one again."""
    monkeypatch.setattr(part_requests, "LOST_S", 2.0)
    read, locker = part_requests.Requests.read, psycopg.connect(database)

    def with_one_that_waits(self: part_requests.Requests, *args: Any) -> None:
        locker.execute("lock table s.c in access exclusive mode")
        read(self, *args)

    monkeypatch.setattr(part_requests.Requests, "read", with_one_that_waits)
    command = [sys.executable, "-m", "tailrace", "pipeline", str(task.folder / "shop.yaml")]
    folder, stop = Path(task.run_path) / "parts", threading.Event()
    with locker, subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as running:
        try:
            wait_for(lambda: "ready" in str(json_files.read(folder, "reader")), 120)
            with meanwhile(Capture(task, once=True, stop=stop).run, stop=stop):
                wait_for(lambda: sum(name.count(".") == 2 for name in left(task)) > 2, 60)
                os.killpg(running.pid, signal.SIGKILL)
                locker.rollback()
                wait_for(lambda: len(read_baselines(task.control_path("baselines"))) == 4, 60)
        finally:
            running.kill()
    assert complete(task, db) and left(task) == ["reader.json"]
