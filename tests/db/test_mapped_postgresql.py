"""One task into a PostgreSQL database: mapped tables, two of them in one target, under rules; and every DDL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.apply import mapped_snapshots as loading
from tailrace.apply.baseline_staging import Staging
from tailrace.capture.process import Capture
from tailrace.capture.snapshot_sink import landings
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import SourceError, StorageFullError
from tailrace.lake import delta as lake
from tailrace.runtime.pipeline import Pipeline
from tailrace.sources import open_source
from tailrace.state import commands, lifecycle
from tailrace.state.baselines import read_baselines
from tailrace.validate.repair import Repair
from tailrace.validate.sessions import Sessions
from tailrace.validate.validation import validate

from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]

FILE = """
name: mixed
home: home
source: {{url: '{url}', tables: ['d.*', m.eu, m.us]}}
target: '{url}&schema=lake'
freshness: 100ms
capture: {{idle_advance: 1s}}
baseline: {{workers: 1}}
keylog: {{mode: all}}
tables:
  d.kept:
    {{ddl: {{add: ignore, drop: ignore, rename: ignore, widen: ignore, retype: ignore}}, on: {{data_error: log}}}}
  d.follows: {{target: d.short, columns: {{nn: n}}}}
  m.*:
    {{target: m.all, where: "{where}", constants: {{site: "@TABLE"}}, columns: {{twice: "n * 2"}}, drop: [v],
      mode: strict, on: {{data_error: log}}}}
  m.us: {{where: "{us}"}}
"""
DDL = ("alter n type bigint", "alter r type text", "drop v", "rename k to kk", "add x int default 7")
"""Widened, retyped, dropped, renamed, added."""


def write(folder: Path, url: str, where: str = "n < 100", us: str = "n < 100") -> Path:
    path = folder / "mixed.yaml"
    path.write_text(FILE.format(url=url, where=where, us=us))
    return path


def rows(db: psycopg.Connection, table: str, columns: str) -> list[tuple[Any, ...]]:
    return db.execute(f"select {columns} from lake.{table} order by {columns}").fetchall()


def mapped(db: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(db, "all", "site, id, n, twice")


def columns(db: psycopg.Connection, table: str) -> dict[str, str]:
    query = "select attname, format_type(atttypid, null) from pg_attribute where attrelid = %s::regclass"
    return dict(db.execute(f"{query} and attnum > 0 and not attisdropped", (f"lake.{table}",)).fetchall())


def held(task: Task) -> dict[str, str]:
    baselines = read_baselines(task.control_path("baselines"))
    return {t: one.why for t, one in lifecycle.of_task(task.commands_path, baselines).items() if one.held}


@pytest.mark.slow
def test_mappings_rules_and_ddl_in_a_database(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("create schema d; create schema m")
    for name in ("d.follows", "d.kept"):
        db.execute(f"create table {name} (id int primary key, v text, n int, r int, k int)")
        db.execute(f"insert into {name} values (1, 'a', 10, 1, 4), (2, 'b', 200, 2, 5)")
    for name in ("m.eu", "m.us"):
        db.execute(f"create table {name} (id int primary key, v text, n int)")
        db.execute(f"alter table {name} replica identity full")
        db.execute(f"insert into {name} values (1, 'a', 10), (2, 'b', 200)")
    db.execute("insert into m.us values (3, 'c', 30)")
    file = write(tmp_path, database)
    file.write_text(file.read_text().replace("twice:", "twice" * 13 + ":").replace("'d.*', ", ""))
    checked = CliRunner().invoke(app, ["check", str(file), "--json"])
    found = [f for f in json.loads(checked.stdout)["findings"] if f["level"] == "error"]
    with pytest.raises(SourceError, match="more than 63 bytes"):
        Capture(load(file), once=True).run()
    assert [f["where"] for f in found] == ["m.eu", "m.us"] and "more than 63 bytes" in found[0]["what"]

    # The baseline of a mapped table, whatever step it dies at.
    task = load(write(tmp_path, database))
    Capture(task, once=True).run()
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "done", crash_at_us)
        with pytest.raises(StorageFullError):
            Pipeline(task, spark).drain()
    assert mapped(db) == [("eu", 1, 10, 20), ("us", 1, 10, 20), ("us", 3, 30, 60)]

    # A conflict, a row that the database refuses, a truncate of one source; every kind of DDL.
    db.execute("delete from lake.all where id = 3; alter table lake.all add check (twice <> 14)")
    db.execute("update m.us set n = 31 where id = 3; update m.us set n = 1 where id = 2")
    db.execute("update m.eu set n = 500 where id = 1; insert into m.eu values (5, 'e', 5)")
    db.execute("truncate m.eu; insert into m.eu values (7, 'q', 7), (8, 'r', 8)")
    for change in DDL:
        for name in ("d.follows", "d.kept"):
            db.execute(f"alter table {name} {change}; update {name} set id = id")
        Capture(task, once=True).run()  # sees each: what all of them together did could not be told
    for name in ("d.follows", "d.kept"):
        db.execute(f"insert into {name} values (3, 30, '33', 6, 8); update {name} set n = 11 where id = 1")
        db.execute(f"insert into {name} values (4, 3000000000, '33', 6, 8), (5, 5, 'no int', 6, 8)")
    drain(task, spark)
    assert mapped(db) == [("eu", 8, 8, 16), ("us", 1, 10, 20), ("us", 2, 1, 2)]
    log = sorted(lake.read(task.keylog_path).to_pylist(), key=lambda r: r["keylog_sort"])
    keys = ("change_row_type", "action_taken", "result_row_count")
    told = {
        t: [tuple(r[k] for k in keys) for r in log if r["subscription_id"] == t] for t in ("m.eu", "m.us")
    }
    assert told == {
        "m.eu": [("B", "D", 1), ("I", "I", 1), ("T", "T", None), ("I", "I", 0), ("I", "I", 1)],
        "m.us": [("U", "M", 0), ("I", "I", 1)],
    }
    errors = sorted(r["result_error"].split(":")[0] for r in log if r["result_error"])
    assert errors == ["data_error", "data_error", "data_error", "update_missing"]
    assert columns(db, "short") == {
        "id": "integer", "nn": "bigint", "r": "text", "kk": "integer", "x": "integer",
    }  # fmt: skip
    follows = [(1, 11, "1", 4, 7), (2, 200, "2", 5, 7), (3, 30, "33", 6, 8), (4, 3 * 10**9, "33", 6, 8)]
    follows += [(5, 5, "no int", 6, 8)]
    assert rows(db, "short", "id, nn, r, kk, x") == follows
    assert columns(db, "kept") == {"id": "integer", "v": "text"} | dict.fromkeys(("n", "r", "k"), "integer")
    kept = [(1, "a", 11, 1, 4), (2, "b", 200, 2, 5), (3, None, 30, 33, 6)]  # which cannot hold the others
    assert rows(db, "kept", "id, v, n, r, k") == kept

    # Another mapping of one source, which a row's value is too much for; then a good one.
    task = load(write(tmp_path, database, us="10 div (n - 31) < 99"))
    db.execute("insert into m.us values (4, 'd', 400); insert into m.eu values (9, 'e', 9)")
    drain(task, spark)
    assert held(task) == {"m.us": loading.CHANGED}
    assert mapped(db) == [("eu", 8, 8, 16), ("eu", 9, 9, 18), ("us", 1, 10, 20), ("us", 2, 1, 2)]
    commands.resync(task.commands_path, "m.us", "another mapping", who="test")
    drain(task, spark)
    assert held(task)["m.us"].startswith("where of m.us (10 div (n - 31)")
    task = load(write(tmp_path, database, us="n < 1000"))
    commands.resync(task.commands_path, "m.us", "another mapping", who="test")
    drain(task, spark)
    us = [("us", 1, 10, 20), ("us", 2, 1, 2), ("us", 3, 31, 62), ("us", 4, 400, 800)]
    assert mapped(db) == [("eu", 8, 8, 16), ("eu", 9, 9, 18), *us]

    repair, calls = Repair(task, Sessions(spark)), list[bool]()

    def catch_up() -> None:
        """Nothing before the target is held: what it lacks is laid over it."""
        if calls:
            drain(task, spark)
        calls.append(True)

    chosen = ["d.follows", "m.eu", "m.us"]
    # Applied when the target is held: laid over it. The row 4 leaves.
    db.execute("update m.us set n = 3000 where id = 4; insert into m.eu values (10, 'k', 10)")
    us = us[:-1]
    source_ = open_source(task)
    try:
        done = validate(task, Sessions(spark), source_, tables=chosen, catch_up=catch_up, amend=repair)
    finally:
        source_.close()
    counted = {t.table: (t.source_rows, t.target_rows, t.differing_rows) for t in done.tables}
    assert counted == {"d.follows": (5, 5, 0), "m.eu": (4, 3, 1), "m.us": (3, 3, 0)}
    assert [t.overlaid for t in done.tables] == [False, True, True]
    (eu,) = repair.done
    assert eu.table == "m.eu" and str(eu.refused).endswith('violates check constraint "all_twice_check"')
    landings(task)("m.eu").drop("m.eu")
    assert mapped(db) == us
    landings(task)("m.us").drop("m.us")
    assert db.execute("select to_regclass('lake.all')").fetchone() == (None,)


def crash_at_us(staging: Staging, table: str, number: int) -> None:
    if table == "m.us":
        raise StorageFullError("killed here")
    _done(staging, table, number)


_done = Staging.done
