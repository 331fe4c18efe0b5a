"""Whatever is interrupted, and wherever: start again, and the result is the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.config.task import Task, load
from tailrace.errors import TailraceError
from tailrace.lake import delta as lake
from tailrace.state.baselines import read_baselines
from tailrace.targets.delta.target import DeltaTarget

from .model import SCHEMA, TABLES, Writer, bag, histories, replay
from .test_model import drain, target_rows, write_task

pytestmark = [pytest.mark.db, pytest.mark.spark]


class Crash(Exception):  # noqa: N818 - stands for a kill, which no code may catch
    pass


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes the n-th durable write fail before it happens; -1 disarms."""
    armed = {"at": -1, "count": 0}

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            mine = armed["count"]
            armed["count"] += 1
            if mine == armed["at"]:
                raise Crash
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(lake, "commit", guarded(lake.commit))
    monkeypatch.setattr(DeltaTarget, "merge", guarded(DeltaTarget.merge))

    def arm(at: int) -> None:
        armed.update(at=at, count=0)

    yield arm


def check(task: Task, writer: Writer) -> None:
    baselines = read_baselines(task.control_path("baselines"))
    for table in TABLES:
        assert bag(target_rows(task, table)) == bag(writer.rows(table)), table
    for table, history in histories(task.relations_path):
        taken = baselines[table]
        start = target_rows(task, table, taken.version)
        replayed = replay(task.changes_path(table), history, start, taken.position)
        assert bag(replayed) == bag(writer.rows(table)), table


@pytest.mark.slow
def test_a_crash_at_any_write_changes_nothing(
    tmp_path: Path, database: str, spark: object, crash_at: Callable[[int], None]
) -> None:
    """Before every second write: what a crash after a write leaves is what one before the next finds."""
    task = load(write_task(tmp_path, database))
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer = Writer(database, 11)
    writer.transactions(20)
    drain(task, spark)
    crashes = 0
    for point in range(0, 14, 2):
        writer.transactions(8)
        crash_at(point)
        try:
            drain(task, spark)
        except (Crash, TailraceError):
            crashes += 1
    crash_at(-1)
    drain(task, spark)
    assert crashes >= 3
    check(task, writer)


@pytest.mark.slow
def test_a_trimmed_log_costs_nothing(tmp_path: Path, database: str, spark: object) -> None:
    task = load(write_task(tmp_path, database))
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer = Writer(database, 13)
    writer.transactions(10)
    for _ in range(2):
        drain(task, spark)
        writer.transactions(15)
        # what retention and vacuum leave of LOG after a week: the files in force
        kept = {Path(p).name for p in DeltaTable(task.log_path).file_uris()}
        for file in Path(task.log_path).glob("*.parquet"):
            if file.name not in kept:
                file.unlink()
    drain(task, spark)
    check(task, writer)


@pytest.mark.slow
def test_kill_9_of_capture_and_of_spark_at_random_moments(tmp_path: Path, database: str) -> None:
    """Capture dies twice a round; the first round ends with the death of its parent, the second with the JVM's."""
    path = write_task(tmp_path, database)
    task = load(path)
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer = Writer(database, 12)
    writer.transactions(20)
    chance = random.Random(5)
    for round_ in range(2):
        running = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "run", str(path)], stdin=subprocess.DEVNULL
        )
        began = time.monotonic()
        deaths = sorted(began + 2 + chance.random() * 12 for _ in range(2))
        # On a busy machine 15 s may be over before anything is stored: all of it would come by baselines.
        while time.monotonic() < began + (15 if stored(task) else 120):
            writer.transactions(3)
            time.sleep(0.05)
            if deaths and time.monotonic() > deaths[0]:
                deaths.pop(0)
                kill(capture_of(running.pid))
        family = psutil.Process(running.pid).children(recursive=True)
        java = java_of(running.pid) if round_ % 2 else None  # there may be none: it starts when it is needed
        kill(java or running.pid)
        if java is None:
            # what is left of a killed parent must end by itself
            psutil.wait_procs(family, timeout=30)
            assert not [p for p in family if alive(p)]
        running.wait(60)
        writer.transactions(5)
    subprocess.run([sys.executable, "-m", "tailrace", "run", str(path), "--once"], check=True, timeout=180)
    check(task, writer)


def stored(task: Task) -> bool:
    return all(lake.exists(task.changes_path(table)) for table in TABLES)


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find(parent: int, is_it: Callable[[psutil.Process], bool]) -> int | None:
    for process in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.Error):
            if is_it(process):
                return process.pid
    return None


def capture_of(parent: int) -> int | None:
    return find(parent, lambda p: p.ppid() == parent and "capture" in p.cmdline())


def java_of(parent: int) -> int | None:
    return find(parent, lambda p: p.name() == "java")


def kill(pid: int | None) -> None:
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
