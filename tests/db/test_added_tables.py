"""A table that is added while capture runs, and may not be read yet: it waits, the others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tailrace.capture import added_tables
from tailrace.capture.process import Capture
from tailrace.capture.stream import MISSING
from tailrace.config.task import Task, load
from tailrace.lake import json_files, log
from tailrace.operate.checks import before_run
from tailrace.operate.status import status
from tailrace.state import commands
from tailrace.state.baselines import baseline_numbers, read_baselines

from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db


@pytest.fixture
def role(db: psycopg.Connection) -> Iterator[str]:
    """A role that may capture s.a alone."""
    name = f"r_{db.info.dbname}"
    db.execute("create schema s; create table s.a (id int primary key)")
    db.execute(f"create role {name} login replication; grant usage on schema s to {name}")
    db.execute(
        f"grant select on s.a to {name};"
        " create publication tailrace_t for table only s.a with (publish_via_partition_root = true)"
    )
    yield name
    db.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = 'tailrace_t'"
    )
    db.execute(f"drop publication tailrace_t; drop owned by {name}; drop role {name}")


def all_of_s(folder: Path, database: str, role: str) -> Task:
    """A task of a role for all tables of s; one that is made again is suspended."""
    url, path = database.replace("postgres@", f"{role}@"), folder / "t.yaml"
    path.write_text(
        f"name: t\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: ['s.*']}}\n"
        "freshness: 50ms\nbaseline: {workers: 1}\napply: {ddl: {recreate_table: suspend}}\n"
    )
    return load(path)


def message(task: Task) -> str:
    """What capture says of tables that wait."""
    return str((json_files.read(task.run_path, "capture") or {}).get("message"))


@pytest.mark.slow
def test_a_table_that_may_not_be_read_yet_waits_and_the_others_go_on(
    db: psycopg.Connection, database: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added_tables, "AGAIN_S", 0.2)
    task, stop = all_of_s(tmp_path, database, role), threading.Event()
    told = partial(message, task)

    def taken() -> list[str]:
        return sorted(read_baselines(task.control_path("baselines")))

    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: taken() == ["s.a"])
        db.execute("create table s.b (id int primary key); insert into s.b values (1)")
        wait_for(lambda: "s.b cannot be captured yet" in told())
        assert (
            f"role {role} has insufficient rights: to read table s.b; to publish table s.b; fix: GRANT"
            in told()
        )
        before = log.state(task.log_path).number
        db.execute("insert into s.a values (1)")
        wait_for(lambda: log.state(task.log_path).number > before)
        db.execute(f"grant select on s.b to {role}; alter publication tailrace_t add table only s.b")
        wait_for(lambda: taken() == ["s.a", "s.b"])
        wait_for(lambda: told() == "None")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s.b", "u.b"], ids=["to the table", "to its schema"])
def test_a_suspended_table_that_lost_its_rights_keeps_no_task_from_starting(
    db: psycopg.Connection, database: str, role: str, tmp_path: Path, name: str
) -> None:
    made = f"create table {name} (id int primary key); insert into {name} values (1)"
    rights = f"grant select on {name} to {role}; alter publication tailrace_t add table only {name}"
    gone = f"drop table {name}"
    if name == "u.b":
        made, rights = f"create schema u; {made}", f"grant usage on schema u to {role}; {rights}"
        gone = "drop schema u cascade"
    db.execute(f"{made}; {rights}")
    url = database.replace("postgres@", f"{role}@")
    path = tmp_path / "t.yaml"
    path.write_text(f"name: t\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: ['s.*', 'u.*']}}\n")
    task = load(path)
    Capture(task, once=True).run()
    db.execute(f"{gone}; {made}; insert into s.a values (1)")
    commands.suspend(task.commands_path, name, MISSING)  # as capture does while it runs
    before_run(task, lambda: None)  # type: ignore[arg-type, return-value]
    before = log.state(task.log_path).number
    Capture(task, once=True).run()
    assert log.state(task.log_path).number > before
    db.execute(rights)
    commands.resync(task.commands_path, name, "made again", who="me")
    Capture(task, once=True).run()
    assert baseline_numbers(task.control_path("baselines")) == {"s.a": 1, name: 2}


@pytest.fixture
def shop(db: psycopg.Connection, database: str, tmp_path: Path) -> Task:
    """A task with s.a; s.b is another table."""
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int primary key)"
    )
    path = tmp_path / "t.yaml"
    path.write_text(
        f"name: t\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{database}', tables: [s.a]}}\n"
        "freshness: 50ms\nbaseline: {workers: 1}\n"
    )
    return load(path)


def waits(task: Task) -> str:
    """What capture waits for."""
    return str((status(task).capture or {}).get("waits"))


def captured(task: Task, db: psycopg.Connection, row: int) -> None:
    """Inserts a row into s.a, and waits until it is in LOG."""
    before = log.state(task.log_path).number
    db.execute("insert into s.a values (%s)", (row,))
    wait_for(lambda: log.state(task.log_path).number > before, 20)


@pytest.mark.slow
@pytest.mark.parametrize("window", ["exact", "open"])
def test_while_a_baseline_waits_for_a_transaction_the_others_go_on_and_it_is_said(
    shop: Task, database: str, db: psycopg.Connection, window: str
) -> None:
    path = shop.folder / "t.yaml"
    path.write_text(path.read_text().replace("workers: 1", f"workers: 1, window: {window}"))
    task, stop, taken = load(path), threading.Event(), shop.control_path("baselines")
    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: list(read_baselines(taken)) == ["s.a"], 30)
        with psycopg.connect(database, application_name="a report") as other:
            other.execute("insert into s.b values (1)")
            commands.give(task.commands_path, commands.ADD, ["s.b"], why="", who="me")
            said = f"process {other.info.backend_pid} ({other.info.user}, a report), since "
            wait_for(lambda: said in waits(task), 20)
            for name in ("s.c", "s.d"):  # a slot each would soon be more than the server has
                db.execute(f"create table {name} (id int primary key)")
                commands.give(task.commands_path, commands.ADD, [name], why="", who="me")
                time.sleep(1.5)
            captured(task, db, 1)
            slots = db.execute("select count(*) from pg_replication_slots where temporary").fetchall()
            assert slots == [(1 if window == "exact" else 0,)]
            assert list(read_baselines(taken)) == ["s.a"]
        wait_for(lambda: sorted(read_baselines(taken)) == ["s.a", "s.b", "s.c", "s.d"], 40)
        wait_for(lambda: waits(task) == "None", 20)
    assert read_baselines(taken)["s.b"].rows == 1


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["its first start", "a new table"])
def test_capture_that_waits_for_a_transaction_can_be_stopped(
    shop: Task, database: str, db: psycopg.Connection, first: bool
) -> None:
    if not first:
        Capture(shop, once=True).run()
        commands.give(shop.commands_path, commands.ADD, ["s.b"], why="", who="me")
    stop = threading.Event()
    with psycopg.connect(database) as other:
        other.execute("insert into s.b values (1)")
        said = f"process {other.info.backend_pid} ("
        with meanwhile(Capture(shop, stop=stop).run, stop=stop):
            wait_for(lambda: said in waits(shop), 20)
            began = time.monotonic()
        assert time.monotonic() - began < 20
    assert status(shop).capture and waits(shop) == "None"
    Capture(shop, once=True).run()
    assert "s.a" in read_baselines(shop.control_path("baselines"))


@pytest.mark.slow
def test_a_table_made_again_that_may_not_be_read_yet_waits_with_its_baseline(
    db: psycopg.Connection, database: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added_tables, "AGAIN_S", 0.2)
    rights = f"grant select on s.b to {role}; alter publication tailrace_t add table only s.b"
    db.execute(f"create table s.b (id int primary key); insert into s.b values (1); {rights}")
    task, stop = all_of_s(tmp_path, database, role), threading.Event()
    told = partial(message, task)

    def numbers() -> dict[str, int]:
        return baseline_numbers(task.control_path("baselines"))

    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: numbers() == {"s.a": 1, "s.b": 1})
        db.execute("drop table s.b; create table s.b (id int primary key); insert into s.b values (2)")
        wait_for(
            lambda: any(
                o.table == "s.b" and o.action == commands.SUSPEND for o in commands.read(task.commands_path)
            )
        )
        commands.resync(task.commands_path, "s.b", "made again", who="me")
        wait_for(lambda: "s.b cannot be captured yet" in told())
        captured(task, db, 1)
        db.execute(rights)
        wait_for(lambda: numbers() == {"s.a": 1, "s.b": 2})
        before = log.state(task.log_path).number
        db.execute("insert into s.b values (3)")
        wait_for(lambda: log.state(task.log_path).number > before)
        wait_for(lambda: told() == "None")
