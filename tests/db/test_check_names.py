"""`check` and `run` on a real server refuse a task file that names what is not there, without a JVM."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.config.task import load
from tailrace.errors import SourceError
from tailrace.operate import checks
from tailrace.state import live, streams

pytestmark = pytest.mark.db
FILE = "name: shop\nhome: home\nsource: {{url: '{url}', tables: {tables}}}\n{more}"


def test_what_check_refuses_run_refuses_at_once(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("create schema s; create table s.item (id int primary key, name text)")
    file = tmp_path / "shop.yaml"
    monkeypatch.setattr(
        "tailrace.runtime.session.session", lambda *args, **more: pytest.fail("a JVM is started")
    )

    def checked(tables: str, more: str = "") -> tuple[int, list[str]]:
        file.write_text(FILE.format(url=database, tables=tables, more=more))
        done = CliRunner().invoke(app, ["check", str(file), "--json"])
        return done.exit_code, [f"{f['what']}; {f['cure']}" for f in json.loads(done.stdout)["findings"]]

    typo = "there is no table s.itm; did you mean s.item?"
    assert checked("[s.itm]") == (3, [typo])
    assert checked("['s.*']", "tables: {s.itm: {mode: strict}}\n") == (3, [typo])
    assert checked("[s.item, s.itm]", "policies: {s.item.nam: 0}\n") == (  # all mistakes at once
        3, [typo, "s.item has no column nam; did you mean name?"],
    )  # fmt: skip
    ran = CliRunner().invoke(app, ["run", str(file), "--once"])
    assert isinstance(ran.exception, SourceError) and "there is no table s.itm" in str(ran.exception)
    assert not (tmp_path / "home/log").exists()
    assert checked("['s.*']", "policies: {s.item.nam: 0}\n") == (
        3, ["s.item has no column nam; did you mean name?"],
    )  # fmt: skip
    assert checked("['s.*']", "policies: {s.item.name: 0}\n") == (0, [])


def test_a_task_that_runs_is_not_told_that_its_slot_is_read(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    from tailrace.capture.process import Capture

    db.execute("create schema s; create table s.item (id int primary key, name text)")
    file = tmp_path / "shop.yaml"
    file.write_text(FILE.format(url=database, tables="[s.item]", more=""))
    task, found = load(file), []

    def began() -> None:
        assert live.locked(task.run_path, "capture")
        assert db.execute(
            "select active from pg_replication_slots where slot_name = 'tailrace_shop'"
        ).fetchone() == (True,)
        found.append(checks.check(task, lambda: pytest.fail("no session is needed")))
        at_work.stop.set()

    at_work = Capture(task, began=began)
    at_work.run()
    assert found == [[]]
    streams.give_up(task, who="me", why="to see")
    assert checks.check(task, lambda: pytest.fail("no session is needed")) == []  # its slot is about to go
