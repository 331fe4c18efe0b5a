"""A table that somebody keeps locked stops nothing but itself, and it is said who keeps it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.lake import log
from tailrace.operate.checks import check
from tailrace.operate.status import status
from tailrace.sources import open_source
from tailrace.state import commands
from tailrace.state.baselines import read_baselines

from .conftest import SETTINGS, OwnServer
from .test_running import meanwhile, wait_for

pytestmark = [pytest.mark.db, pytest.mark.slow]

LOCK = "lock table s.b in access exclusive mode"
PARTITION = "lock table s.p_1 in access exclusive mode"


@pytest.fixture
def url(own_server: OwnServer) -> Iterator[str]:
    """A server that knows prepared transactions, with tables s.a, s.b, s.c and the partitioned s.p."""
    with own_server(settings=SETTINGS | {"max_prepared_transactions": "5"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as db:
            db.execute("create schema s")
            for name in "abc":
                db.execute(f"create table s.{name} (id int primary key, v text)")
            db.execute("create table s.p (id int primary key) partition by range (id)")
            db.execute("create table s.p_1 partition of s.p for values from (0) to (9)")
        yield server.url()


def task_of(folder: Path, url: str, tables: str = "s.a, s.b, s.p") -> Task:
    path = folder / "t.yaml"
    path.write_text(
        f"name: t\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: [{tables}]}}\n"
        "freshness: 50ms\nbaseline: {workers: 1}\n"
    )
    return load(path)


def taken(task: Task) -> list[str]:
    return sorted(read_baselines(task.control_path("baselines")))


def said(task: Task) -> str:
    return str((status(task).capture or {}).get("message"))


def captured(task: Task, db: psycopg.Connection, row: int) -> None:
    before = log.state(task.log_path).number
    db.execute("insert into s.a values (%s)", (row,))
    wait_for(lambda: log.state(task.log_path).number > before, 15)


@pytest.mark.parametrize("statement", [LOCK, PARTITION])
def test_a_locked_table_stops_no_other_and_the_blocking_process_is_named(
    url: str, tmp_path: Path, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = "s.b" if statement == LOCK else "s.p"
    task, stop = task_of(tmp_path, url), threading.Event()
    with psycopg.connect(url, autocommit=True) as db, meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: taken(task) == ["s.a", "s.b", "s.p"], 30)
        with psycopg.connect(url, application_name="a report") as other:
            other.execute(statement.encode())
            captured(task, db, 1)
            process = f"{table} is locked by process {other.info.backend_pid} (postgres, a report)"
            wait_for(lambda: process in said(task), 20)
            captured(task, db, 2)
            began = time.monotonic()
            found = check(task, lambda: None)  # type: ignore[arg-type, return-value]
            assert time.monotonic() - began < 10
            assert [one.level for one in found if process in one.what] == ["warning"]
        wait_for(lambda: said(task) == "None", 20)
        captured(task, db, 3)
    assert any(process in one.message for one in caplog.records)


def test_a_prepared_transaction_is_named_by_its_gid(url: str, tmp_path: Path) -> None:
    task = task_of(tmp_path, url)
    Capture(task, once=True).run()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("begin; alter table s.b add w int; prepare transaction 'a deploy'")
        began = time.monotonic()
        db.execute("insert into s.a values (1)")
        Capture(task, once=True).run()
        found = check(task, lambda: None)  # type: ignore[arg-type, return-value]
        assert time.monotonic() - began < 20
        assert [
            one.cure for one in found if "s.b is locked by the prepared transaction 'a deploy'" in one.what
        ] == ["COMMIT PREPARED 'a deploy', or ROLLBACK PREPARED 'a deploy'"]
        db.execute("rollback prepared 'a deploy'")


def test_a_table_that_is_locked_when_it_is_added_joins_once_it_is_free(url: str, tmp_path: Path) -> None:
    task, stop = task_of(tmp_path, url), threading.Event()
    with psycopg.connect(url, autocommit=True) as db, meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: taken(task) == ["s.a", "s.b", "s.p"], 30)
        with psycopg.connect(url) as other:
            other.execute("lock table s.c in share row exclusive mode")
            commands.give(task.commands_path, commands.ADD, ["s.c"], why="", who="me")
            wait_for(lambda: f"s.c is locked by process {other.info.backend_pid}" in said(task), 20)
            captured(task, db, 1)
            captured(task, db, 2)
            db.execute("select * from s.c")  # nobody waits for the lock in front of it
        wait_for(lambda: taken(task) == ["s.a", "s.b", "s.c", "s.p"], 30)
        wait_for(lambda: said(task) == "None", 20)


def test_once_ends_although_a_table_is_locked_and_takes_it_the_next_time(url: str, tmp_path: Path) -> None:
    task = task_of(tmp_path, url)
    with psycopg.connect(url, autocommit=True) as db:
        with psycopg.connect(url) as other:
            other.execute("lock table s.b in share mode")  # as CREATE INDEX does
            Capture(task, once=True).run()
        assert taken(task) == ["s.a", "s.p"]
        db.execute("insert into s.b values (1)")
        Capture(task, once=True).run()
        assert taken(task) == ["s.a", "s.b", "s.p"]
    with closing(open_source(task)) as source:
        assert sorted(source.published(["s.a", "s.b", "s.p"]) or ()) == ["s.a", "s.b", "s.p"]
