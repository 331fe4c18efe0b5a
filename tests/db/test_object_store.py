"""A task whose home and target are in an object store."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from tailrace.capture import part_readers
from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.lake.opened import open_table
from tailrace.state.baselines import read_baselines
from tailrace.targets.task_tables import target_tables

from ..object_store import KEYS, Store, object_store
from .conftest import OwnServer
from .test_running import wait_for

pytestmark = [pytest.mark.db]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with object_store() as there:
        yield there


def task_file(
    folder: Path, store: Store, database: str, name: str = "far", more: str = "", kind: str = "delta"
) -> Path:
    path = folder / f"{name}.yaml"
    target = f"{{type: {kind}, path: 's3://{store.bucket}/{name}/target'}}"
    path.write_text(
        f"name: {name}\nhome: s3://{store.bucket}/{name}/home\ntarget: {target}\n"
        f"storage: {store.storage}\nsource: {{url: '{database}', tables: [s.*]}}\n"
        f"freshness: 1s\nspark: {{start: when_needed}}\n{more}"
    )
    return path


@contextmanager
def running(path: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    said = path.with_suffix(f".{command[0]}.log")
    with said.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", *command, str(path)], stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        print(said.read_text())


def tailrace(path: Path, *words: str) -> str:
    command = [sys.executable, "-m", "tailrace", words[0], str(path), *words[1:]]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ids(task: Task, table: str = "s.a") -> list[int]:
    if table not in read_baselines(task.control_path("baselines")):
        return []
    tables = target_tables(task)
    with tables.opened(tables.name(table)) as now:
        return sorted(now.dataset().to_table(columns=["id"])["id"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_task_in_a_bucket_replicates_validates_and_is_dropped(
    tmp_path: Path, store: Store, database: str, db: psycopg.Connection, kind: str
) -> None:
    db.execute("create schema s; create table s.a (id int primary key, v text)")
    db.execute("insert into s.a values (1, 'one')")
    path = task_file(tmp_path, store, database, kind, "keylog: {mode: all}\n", kind)
    task = load(path)
    with running(path, "run") as process:
        wait_for(lambda: ids(task) == [1])
        db.execute("insert into s.a values (2, 'two'); update s.a set v = 'other' where id = 1")
        wait_for(lambda: ids(task) == [1, 2])
        assert json.loads(tailrace(path, "status", "--json"))["tables"][0]["state"] == "running"
        assert "equal" in tailrace(path, "validate")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    tailrace(path, "drop", "--targets", "--yes")
    assert not lake.exists(task.log_path)
    left = {file.name for file in tmp_path.iterdir()} - {f"{kind}-catalog.db"}
    assert left == {f"{kind}.run.log", f"{kind}.yaml"}


def test_capture_and_pipeline_share_nothing_but_the_bucket(
    tmp_path: Path, store: Store, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.a (id int primary key, v text)")
    path = task_file(tmp_path, store, database, "two")
    task = load(path)
    with running(path, "capture") as capture, running(path, "pipeline") as pipeline:
        wait_for(lambda: "s.a" in read_baselines(task.control_path("baselines")))
        db.execute("insert into s.a select g, 'v' from generate_series(1, 100) g")
        wait_for(lambda: len(ids(task)) == 100)
        second = subprocess.run(
            [sys.executable, "-m", "tailrace", "capture", str(path)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert second.returncode and f"already running, as process {capture.pid} on " in second.stderr
        capture.kill()
        pipeline.kill()
    with running(path, "run"):  # on the same machine, killed processes are known to have ended
        db.execute("insert into s.a select g, 'v' from generate_series(101, 200) g")
        wait_for(lambda: len(ids(task)) == 200, 60)


def test_worker_processes_read_a_baseline_into_a_bucket(
    tmp_path: Path, store: Store, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_readers, "FEW_ROWS", 0)  # threads read the first rows
    db.execute("create schema s; create table s.a (id int primary key)")
    db.execute("insert into s.a select g from generate_series(1, 5000) g")
    task = load(task_file(tmp_path, store, database, "workers"))
    Capture(task, once=True).run()
    assert ids(task) == [*range(1, 5001)]


@pytest.mark.slow
def test_store_that_fails_now_and_then_loses_and_doubles_nothing(
    tmp_path: Path, store: Store, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.a (id int primary key, v text)")
    path = task_file(tmp_path, store, database, "faulty", "keylog: {mode: keys}\n")
    task = load(path)
    with running(path, "run") as process:
        wait_for(lambda: "s.a" in read_baselines(task.control_path("baselines")))
        with store.faulty(busy=0.05, reset=0.03, lost=0.03, latency=0.005):
            for n in range(40):
                db.execute(
                    "insert into s.a select g, 'v' from generate_series(%s::int, %s) g", (n * 50, n * 50 + 49)
                )
                db.execute("update s.a set v = v || 'x' where id %% 7 = %s", (n % 7,))
                if n == 20:
                    process.kill()
                    process.wait()
                if n == 21:
                    again = subprocess.Popen([sys.executable, "-m", "tailrace", "run", str(path)])
                time.sleep(0.5)
        wait_for(lambda: len(ids(task)) == 2000)
        assert "equal" in tailrace(path, "validate")
        again.send_signal(signal.SIGTERM)
        assert again.wait(60) == 0
    rows = lake.read(task.log_path, ["CHANGE_SEQ"])["CHANGE_SEQ"].to_pylist()
    assert len(rows) == len(set(rows))
    changes = lake.read(task.changes_path("s.a"), ["header__change_seq", "header__change_oper"]).to_pylist()
    assert len(changes) == len({tuple(one.values()) for one in changes})
    logged = lake.read(task.keylog_path, ["change_row_counter", "change_row_type"]).to_pylist()
    assert len(logged) == len({tuple(one.values()) for one in logged})


@pytest.mark.slow
def test_an_idle_task_sends_at_most_three_requests_a_second(
    tmp_path: Path, store: Store, own_server: OwnServer
) -> None:
    """Averaged over a minute, with its commits of the position of a source that is idle, too."""
    with own_server() as server:
        with psycopg.connect(server.tcp_url(), autocommit=True) as db:
            db.execute("create schema s; create table s.a (id int primary key); insert into s.a values (1)")
        path = task_file(tmp_path, store, server.tcp_url(), "idle")
        _counted_while_idle(path, store)


def _counted_while_idle(path: Path, store: Store) -> None:
    task = load(path)
    with running(path, "run"):
        wait_for(lambda: ids(task) == [1])
        time.sleep(40)  # a start has more to do
        before = store.counts()
        time.sleep(60)
        sent = store.counts() - before
        assert sent.total() <= 180, sent


@pytest.mark.slow
@pytest.mark.spark
def test_spark_merges_in_a_bucket_and_shows_no_key(
    tmp_path: Path, store: Store, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.a (id int primary key, v text)")
    db.execute("insert into s.a select g, 'v' from generate_series(1, 5000) g")
    path = task_file(tmp_path, store, database, "merged", "spark: {start: at_once, driver_limit: 1}\n")
    path.write_text(
        path.read_text()
        .replace("spark: {start: when_needed}\n", "")
        .replace("type: delta", "type: delta, rewrite_limit: 0B")
    )
    task = load(path)
    with running(path, "run") as process:
        wait_for(lambda: len(ids(task)) == 5000)
        db.execute("update s.a set v = 'changed' where id = 7")
        wait_for(
            lambda: (
                "deletionVectors" in (open_table(task.target_path("s.a")).protocol().reader_features or [])
            )
        )
        parent = psutil.Process(process.pid)
        living = [one for one in [parent, *parent.children(recursive=True)] if one.status() != "zombie"]
        commands = [" ".join(one.cmdline()) for one in living]
        assert any("java" in one for one in commands) and not any(
            KEYS["secret_key"] in one for one in commands
        )
        assert "equal" in tailrace(path, "validate")
