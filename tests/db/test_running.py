"""A task while it runs: tables that join it, validation of a source that goes on changing, the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tailrace.capture.process import Capture
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError, PositionError
from tailrace.lake import delta as lake
from tailrace.operate.status import status
from tailrace.runtime.pipeline import Pipeline
from tailrace.sources import open_source
from tailrace.state import commands
from tailrace.state.baselines import read_baselines
from tailrace.validate.sessions import Sessions
from tailrace.validate.validation import ValidationReport, validate

from .model import SCHEMA, TABLES, Writer, bag
from .test_model import drain, target_rows, write_task

pytestmark = [pytest.mark.db, pytest.mark.spark]


def wait_for(what: Callable[[], bool], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


@contextmanager
def meanwhile(*works: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    """Runs functions in threads until the block ends; what they raise is raised here."""
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(w,)) for w in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        # Also where the block has failed: it may have waited for a thread that was gone.
        assert failed == []


@pytest.mark.slow
def test_what_reaches_the_whole_process_group_ends_both_halves_normally(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """As Ctrl-C in a terminal does."""
    db.execute("create schema s; create table s.a (id int primary key); insert into s.a values (1)")
    path = tmp_path / "both.yaml"
    path.write_text(f"name: both\nhome: home\nsource: {{url: '{database}', tables: [s.a]}}\n")
    task = load(path)
    command = [sys.executable, "-m", "tailrace", "run", str(path)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as running:
        wait_for(lambda: bool(read_baselines(task.control_path("baselines"))))
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(60) == 0
    found = status(task)
    assert found.capture is not None and found.pipeline is not None
    assert (found.capture["state"], found.pipeline["state"]) == ("stopped", "stopped")


@pytest.mark.slow
def test_a_table_joins_a_running_task_with_a_baseline_of_its_own(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: object
) -> None:
    db.execute("create schema s; create table s.a (id int primary key); insert into s.a values (1)")
    path = tmp_path / "grow.yaml"
    words = (
        f"name: grow\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{database}', tables: [s.a%s]}}\n"
    )
    path.write_text(words % "")
    stop = threading.Event()
    running = Capture(load(path), stop=stop, reload=lambda: load(path))
    record = load(path).control_path("baselines")
    with meanwhile(running.run, stop=stop):
        wait_for(lambda: "s.a" in read_baselines(record))
        db.execute("create table s.b (id int primary key, v text); insert into s.b values (1, 'before')")
        path.write_text(words % ", s.b")
        wait_for(lambda: "s.b" in read_baselines(record))
        db.execute("insert into s.b values (2, 'after'); insert into s.a values (2)")
    task = load(path)
    drain(task, spark)
    assert sorted(r["id"] for r in target_rows(task, "s.a")) == [1, 2]
    assert bag(target_rows(task, "s.b")) == bag([{"id": 1, "v": "before"}, {"id": 2, "v": "after"}])


def test_once_commits_when_everything_is_read_not_when_a_commit_is_due(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.a (id int primary key)")
    path = tmp_path / "soon.yaml"
    path.write_text(
        f"name: soon\nhome: home\ntarget: {{path: lake}}\nfreshness: 300\n"
        f"source: {{url: '{database}', tables: [s.a]}}\nbaseline: {{enabled: false}}\n"
    )
    task = load(path)
    Capture(task, once=True).run()
    db.execute("insert into s.a select generate_series(1, 1000)")
    began = time.monotonic()
    Capture(task, once=True).run()
    assert time.monotonic() - began < 300
    assert lake.read(task.log_path, ["RECID"]).num_rows == 1002


def check(task: Task, spark: Any, **more: Any) -> ValidationReport:
    source = open_source(task)
    try:
        return validate(task, Sessions(spark), source, **more)
    finally:
        source.close()


@pytest.mark.slow
def test_validation_finds_a_common_position_while_everything_goes_on(
    tmp_path: Path, database: str, spark: Any
) -> None:
    task = load(write_task(tmp_path, database))
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer = Writer(database, 31)
    writer.transactions(20)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            writer.transactions(1)
            time.sleep(0.1)

    pipeline = Pipeline(task, spark, stop=stop)
    with meanwhile(Capture(task, stop=stop).run, pipeline.run, write, stop=stop):
        wait_for(lambda: set(TABLES) <= set(read_baselines(task.control_path("baselines"))))
        reports = [check(task, spark), check(task, spark, tables=["m.keyed", "m.bag"])]
    wrong = [(k, t) for k, r in enumerate(reports) for t in r.tables if not t.equal]
    assert wrong == []
    assert reports[0].position < reports[1].position
    assert all(sum(t.source_rows for t in r.tables) > 0 for r in reports)


@pytest.mark.slow
def test_validation_shows_what_differs(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema m; create table m.t (id int primary key, v text)")
    db.execute("insert into m.t select i, 'v' || i from generate_series(1, 500) i")
    task = load(write_task(tmp_path, database))
    drain(task, spark)
    target = DeltaTable(task.target_path("m.t"))
    target.delete("id = 7")
    target.update(new_values={"v": "changed"}, predicate="id = 9")
    # the applied version is what counts, so the tampered one has to be an applied one
    db.execute("insert into m.t values (501, 'x')")
    (found,) = check(task, spark, catch_up=lambda: drain(task, spark)).tables
    assert (found.equal, found.source_rows, found.target_rows, found.differing_rows) == (False, 501, 500, 3)
    assert [(s["side"], s["id"], s["v"]) for s in sorted(found.samples, key=lambda s: (s["id"], s["side"]))] == [
        ("source", "7", "v7"), ("source", "9", "v9"), ("target", "9", "changed"),
    ]  # fmt: skip


def test_validation_without_a_running_task_says_so(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema m; create table m.t (id int primary key)")
    task = load(write_task(tmp_path, database))
    with pytest.raises(ConfigError, match=r"no baseline of m\.t yet"):
        check(task, spark, tables=["m.t"])
    drain(task, spark)
    db.execute("insert into m.t values (1)")
    with pytest.raises(PositionError, match="tailrace run"):
        check(task, spark, timeout_s=0.5)
    commands.give(task.commands_path, commands.REMOVE, ["m.t"], why="not needed", who="me")
    drain(task, spark)
    with pytest.raises(ConfigError, match=r"m\.t was removed from the task.*\n.*\n.*tailrace add"):
        check(task, spark, tables=["m.t"])


@pytest.mark.slow
def test_the_commands_from_nothing_to_proof(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema shop; create table shop.t (id int primary key, v text)")
    db.execute("insert into shop.t values (1, 'a')")
    path = tmp_path / "shop.yaml"

    def tailrace(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, "--json"])
        assert result.exit_code == 0, (words, result.output, result.exception)
        return json.loads(result.stdout)

    made = tailrace("init", database, "--name", "shop", "shop.*", "--file", str(path))
    assert made["tables"] == ["shop.t"]
    done = tailrace("run", str(path), "--once")
    assert [(t["table"], t["baseline_rows"]) for t in done["tables"]] == [("shop.t", 1)]
    db.execute("update shop.t set v = 'b'; insert into shop.t values (2, 'c')")
    assert tailrace("capture", str(path), "--once")["records"] == 4
    assert tailrace("pipeline", str(path), "--once")["tables"][0]["stored"] == 2
    (table,) = tailrace("status", str(path))["tables"]
    assert (table["inserted"], table["updated"], table["behind"]) == (1, 1, 0)
    report = tailrace("validate", str(path))
    assert report["equal"] and [(t["source_rows"], t["target_rows"]) for t in report["tables"]] == [(2, 2)]
