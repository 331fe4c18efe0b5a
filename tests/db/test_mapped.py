"""A mapped table of a task: found mistakes, a baseline that a crash interrupts, a mapping that is edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tailrace.apply import mapped_snapshots as loading
from tailrace.apply.baseline_staging import Staging
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import SourceError, StorageFullError
from tailrace.lake import delta as lake
from tailrace.state import commands, lifecycle
from tailrace.state.baselines import read_baselines

from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]

FILE = """
name: mapped
home: home
source: {{url: '{url}', tables: [s.t]}}
target: {{path: lake}}
freshness: 100ms
capture: {{idle_advance: 1s}}
baseline: {{workers: 1}}
tables: {{s.t: {{target: s.short, where: "{where}", columns: {{word: "upper(v)"}}, drop: [v]}}}}
"""


def write(folder: Path, url: str, where: str) -> Path:
    path = folder / "mapped.yaml"
    path.write_text(FILE.format(url=url, where=where))
    return path


def rows(task: Task) -> list[tuple[int, str]]:
    found = DeltaTable(task.target_path("s.short")).to_pyarrow_table().to_pylist()
    return sorted((r["id"], r["word"]) for r in found)


def columns(task: Task) -> list[str]:
    return [one.name for one in DeltaTable(task.target_path("s.short")).schema().fields]


@pytest.mark.slow
def test_a_mapped_table_from_its_mistakes_to_another_mapping(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("create schema s; create table s.t (id int primary key, v text)")
    db.execute("insert into s.t values (1, 'a'), (2, 'bb'), (3, 'ccc')")

    checked = CliRunner().invoke(app, ["check", str(write(tmp_path, database, "length(v) < 3")), "--json"])
    (finding,) = json.loads(checked.stdout)["findings"]
    assert (checked.exit_code, finding["level"], finding["cure"]) == (
        3, "error", "ALTER TABLE s.t REPLICA IDENTITY FULL",
    )  # fmt: skip
    ran = CliRunner().invoke(app, ["run", str(tmp_path / "mapped.yaml"), "--once"])
    assert isinstance(ran.exception, SourceError) and not (tmp_path / "home/log").exists()
    db.execute("alter table s.t replica identity full")
    file = write(tmp_path, database, "length(v) < 3")
    file.write_text(file.read_text().replace("drop: [v]", "drop: [w], key: [idd]"))
    captured = CliRunner().invoke(app, ["capture", str(file), "--once"])
    assert isinstance(captured.exception, SourceError)
    assert captured.exception.what.splitlines() == [
        "drop: s.t has no column 'w' (s.t)", "key: the target has no column 'idd' (s.t)",
    ]  # fmt: skip
    write(tmp_path, database, "length(v) < 3")
    checked = CliRunner().invoke(app, ["check", str(tmp_path / "mapped.yaml")])
    assert (checked.exit_code, checked.stdout.strip()) == (0, "no problems found")
    db.execute("create table s.free (v text); alter table s.free replica identity full")
    free = tmp_path / "free.yaml"
    words = FILE[: FILE.index("tables: {{s.t:")].replace("[s.t]", "[s.free]")
    free.write_text(words.format(url=database) + "tables: {s.free: {soft_delete: gone}}\n")
    checked = CliRunner().invoke(app, ["check", str(free), "--json"])
    (finding,) = json.loads(checked.stdout)["findings"]
    assert (checked.exit_code, finding["what"], finding["where"]) == (
        3, "soft delete marks rows by their key, and the table has none", "s.free",
    )  # fmt: skip

    task = load(tmp_path / "mapped.yaml")
    with monkeypatch.context() as patch:
        patch.setattr(loading, "record_load", _crash)
        with pytest.raises(StorageFullError):
            drain(task, spark)
    assert rows(task) == [(1, "A"), (2, "BB")] and lake.exists(Staging(task.staging_path).path("s.t", 1))
    db.execute("update s.t set v = 'dddd' where id = 1; update s.t set v = 'c' where id = 3")
    drain(task, spark)
    assert rows(task) == [(2, "BB"), (3, "C")] and not lake.exists(Staging(task.staging_path).path("s.t", 1))

    task = load(write(tmp_path, database, "id > 1"))
    db.execute("insert into s.t values (4, 'dddd')")
    drain(task, spark)
    assert held(task) == ("suspended", loading.CHANGED)
    commands.give(task.commands_path, commands.RESUME, ["s.t"], why="", who="test")
    drain(task, spark)
    assert rows(task) == [(2, "BB"), (3, "C")]
    # An expression that a row's value is too much for: in a baseline, then in a change.
    task = load(write(tmp_path, database, "10 div (id - 4) < 99"))
    commands.resync(task.commands_path, "s.t", "another mapping", who="test")
    drain(task, spark)
    state, why = held(task)
    assert state == "suspended" and why.startswith("where of s.t (10 div (id - 4)")
    assert "cannot be computed from a row: [DIVIDE_BY_ZERO] Division by zero." in why
    assert why.endswith("then `tailrace resync` s.t") and rows(task) == [(2, "BB"), (3, "C")]
    task = load(write(tmp_path, database, "10 div (id - 5) < 99"))
    db.execute("update s.t set v = '1' where id < 4")
    commands.resync(task.commands_path, "s.t", "another mapping", who="test")
    drain(task, spark)
    assert rows(task) == [(1, "1"), (2, "1"), (3, "1"), (4, "DDDD")]
    db.execute("insert into s.t values (5, '5')")
    drain(task, spark)
    state, why = held(task)
    assert state == "suspended" and why.startswith("where of s.t (10 div (id - 5)")
    assert rows(task) == [(1, "1"), (2, "1"), (3, "1"), (4, "DDDD")]


def test_a_column_that_is_left_out_may_go_at_the_source(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema s; create table s.t (id int primary key, word text, note text)")
    db.execute("insert into s.t values (1, 'a', 'n')")
    plain = "tables: {s.t: {target: s.short, drop: [note], constants: {site: '@TABLE'}}}\n"
    file = tmp_path / "mapped.yaml"
    file.write_text(FILE[: FILE.index("tables: {{s.t:")].format(url=database) + plain)
    task = load(file)
    drain(task, spark)
    db.execute("alter table s.t drop note")
    db.execute("insert into s.t values (2, 'b')")
    drain(task, spark)
    assert rows(task) == [(1, "a"), (2, "b")]
    checked = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert (checked.exit_code, json.loads(checked.stdout)["findings"]) == (0, [])
    file.write_text(file.read_text().replace("[note]", "[not]"))
    checked = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert [one["what"] for one in json.loads(checked.stdout)["findings"]] == [
        "drop: s.t has no column 'not'"
    ]


@pytest.mark.slow
def test_a_column_that_is_left_out_stays_out_when_it_is_renamed(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema s; create table s.t (id int primary key, word text, note text)")
    db.execute("insert into s.t values (1, 'a', 'secret')")
    plain = "tables: {s.t: {target: s.short, drop: [note]}}\n"
    file = tmp_path / "mapped.yaml"
    file.write_text(FILE[: FILE.index("tables: {{s.t:")].format(url=database) + plain)
    task = load(file)
    drain(task, spark)
    db.execute("alter table s.t rename note to remark")
    db.execute("insert into s.t values (2, 'b', 'new secret')")
    drain(task, spark)
    commands.give(task.commands_path, commands.RESYNC, ["s.t"], why="", who="me")
    drain(task, spark)
    db.execute("insert into s.t values (3, 'c', 'third secret')")
    drain(task, spark)
    assert rows(task) == [(1, "a"), (2, "b"), (3, "c")]
    assert columns(task) == ["id", "word"]
    checked = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert [(one["level"], one["what"]) for one in json.loads(checked.stdout)["findings"]] == [
        (
            "warning",
            "column 'remark' stays out of the target: it was called 'note' before, which `drop` names",
        )
    ]
    file.write_text(file.read_text().replace("drop: [note]", "drop: [note], columns: {remark: remark}"))
    task = load(file)
    commands.give(task.commands_path, commands.RESYNC, ["s.t"], why="", who="me")
    drain(task, spark)
    assert columns(task) == ["id", "word", "remark"]


def held(task: Task) -> tuple[str, str]:
    states = lifecycle.of_task(task.commands_path, read_baselines(task.control_path("baselines")))
    return states["s.t"].held, states["s.t"].why


def _crash(*_: object) -> None:
    raise StorageFullError("killed here")
