"""A table that is added while capture runs, and may not be read yet: it waits, the others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.capture import added_tables
from tailrace.capture.process import Capture
from tailrace.config.task import load
from tailrace.lake import json_files, log
from tailrace.state import ledger

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


@pytest.mark.slow
def test_a_table_that_may_not_be_read_yet_waits_and_the_others_go_on(
    db: psycopg.Connection, database: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added_tables, "AGAIN_S", 0.2)
    url = database.replace("postgres@", f"{role}@")
    path = tmp_path / "t.yaml"
    path.write_text(
        f"name: t\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: ['s.*']}}\n"
        "capture: {commit_every: 50ms}\nbaseline: {workers: 1}\n"
    )
    task, stop = load(path), threading.Event()

    def told() -> str:
        return str((json_files.read(task.run_path, "capture") or {}).get("message"))

    def taken() -> list[str]:
        return sorted(ledger.read_baselines(task.control_path("baselines")))

    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: taken() == ["s.a"])
        db.execute("create table s.b (id int primary key); insert into s.b values (1)")
        wait_for(lambda: "s.b cannot be captured yet" in told())
        assert f"role {role} lacks rights: to read table s.b; to publish table s.b; fix: GRANT" in told()
        before = log.state(task.log_path).number
        db.execute("insert into s.a values (1)")
        wait_for(lambda: log.state(task.log_path).number > before)
        db.execute(f"grant select on s.b to {role}; alter publication tailrace_t add table only s.b")
        wait_for(lambda: taken() == ["s.a", "s.b"])
        wait_for(lambda: told() == "None")
