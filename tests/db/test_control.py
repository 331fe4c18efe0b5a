"""Single tables under control while the task runs: the others go on, nothing is lost, and status says why."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.capture.process import Capture
from tailrace.capture.target_rename import TargetRenames
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import ApplyError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.operate.checks import gone_findings
from tailrace.operate.status import status
from tailrace.runtime.pipeline import Pipeline
from tailrace.sources.postgresql import slot
from tailrace.sources.postgresql.slot import published
from tailrace.state import commands
from tailrace.state.baselines import read_baselines

from .model import bag
from .test_model import drain, target_rows
from .test_running import meanwhile, wait_for

pytestmark = [pytest.mark.db, pytest.mark.spark]


def task_file(folder: Path, url: str, *, tables: str = "s.a, s.b", more: str = "") -> Path:
    path = folder / "shop.yaml"
    path.write_text(
        f"name: shop\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: [{tables}]}}\n"
        "freshness: 100ms\nbaseline: {workers: 1}\n"
        f"maintenance: {{every: 2s, small_files: 4, keep_log: 0s}}\n"
        # What goes as soon as nobody needs it shows whether somebody did.
        f"retention: {{keep: 0s}}\n{more}"
    )
    return path


def tailrace(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Shop:
    """A source with tables s.a, s.b, ... (id, v), and the task that follows them."""

    def __init__(self, path: Path, db: psycopg.Connection) -> None:
        self.path, self.db = path, db

    @property
    def task(self) -> Task:
        return load(self.path)

    def do(self, text: str) -> None:
        self.db.execute(text)  # type: ignore[arg-type]

    def equal(self, table: str) -> bool:
        with self.db.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            rows = cursor.execute(f"select * from {table}").fetchall()  # type: ignore[arg-type]
        return lake.exists(self.task.target_path(table)) and bag(target_rows(self.task, table)) == bag(rows)

    def state(self, table: str) -> tuple[str, str | None]:
        (mine,) = [t for t in status(self.task).tables if t.table == table]
        return mine.state, mine.why


@pytest.mark.slow
def test_tables_are_paused_resynced_added_and_removed_while_the_task_runs(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema s")
    for name in "abc":
        db.execute(
            f"create table s.{name} (id int primary key, v text); insert into s.{name} values (1, 'x')"
        )  # type: ignore[arg-type]
    path = task_file(tmp_path, database, more="tables: {s.*: {ddl: {rename_table: apply}}}\n")
    shop, stop = Shop(path, db), threading.Event()
    text = str(path)
    capture = Capture(load(path), stop=stop, reload=lambda: load(path))
    pipeline = Pipeline(load(path), spark, stop=stop)
    with meanwhile(capture.run, pipeline.run, stop=stop):
        wait_for(lambda: shop.equal("s.a") and shop.equal("s.b"))

        done = tailrace("pause", text, "s.a", "--why", "night load")
        assert (done["tables"], done["running"]) == (["s.a"], ["capture", "pipeline"])
        wait_for(lambda: pipeline._scheduler.command >= done["order"])
        shop.do("insert into s.a values (2, 'waits'); insert into s.b values (2, 'goes on')")
        wait_for(lambda: shop.equal("s.b"))
        assert [r["id"] for r in target_rows(shop.task, "s.a")] == [1]
        assert shop.state("s.a") == ("paused", "night load")
        assert "s.a: paused since" in CliRunner().invoke(app, ["status", text]).output
        assert tailrace("resume", text, "s.*")["passed"] == {"s.b": "it is neither paused nor suspended"}
        wait_for(lambda: shop.equal("s.a"))

        # Changes keep flowing while a new baseline is read; what others did to the target is gone.
        target = shop.task.target_path("s.a")
        lake.replace_all(target, [], schema=lake.arrow_schema(target), progress={})
        assert not shop.equal("s.a")
        tailrace("resync", text, "s.a", "--why", "emptied by mistake")
        for n in range(3, 60):
            shop.do(f"insert into s.a values ({n}, 'more')")
        wait_for(lambda: shop.equal("s.a") and shop.state("s.a") == ("running", None))
        assert read_baselines(shop.task.control_path("baselines"))["s.a"].number == 2

        tailrace("add", text, "s.*")
        wait_for(lambda: shop.equal("s.c"))
        shop.do("update s.c set v = 'followed'")
        wait_for(lambda: shop.equal("s.c"))

        assert tailrace("remove", text, "s.c", "--dry-run")["order"] == 0
        tailrace("remove", text, "s.c")
        wait_for(lambda: published(db, "tailrace_shop") == {"s.a", "s.b"})
        shop.do("insert into s.c values (9, 'unseen'); insert into s.a values (1000, 'seen')")
        wait_for(lambda: shop.equal("s.a"))
        assert [r["v"] for r in target_rows(shop.task, "s.c")] == ["followed"]
        assert shop.state("s.c")[0] == "removed"
        tailrace("add", text, "s.c")
        wait_for(lambda: shop.equal("s.c"))

        tailrace("remove", text, "s.c", "--drop-target")
        shop.do("alter table s.b rename to bee")
        for n in range(3, 30):
            shop.do(f"insert into s.bee values ({n}, 'under another name')")
        wait_for(lambda: not lake.exists(shop.task.target_path("s.c")))
        wait_for(lambda: shop.equal("s.bee") and shop.state("s.b") == ("running", None))
        shop.do("update s.bee set v = 'followed'")
        wait_for(lambda: shop.equal("s.bee"))
    assert not lake.exists(shop.task.target_path("s.b"))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at the start", "when orders are taken in"])
def test_a_table_gets_another_name_just_then(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Between the look at the catalog and what is published by it."""
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int primary key)"
    )
    path = task_file(tmp_path, database, more="tables: {s.*: {ddl: {rename_table: apply}}}\n")
    task, stop, asked = load(path), threading.Event(), threading.Event()
    publish, renamed = slot.publish, threading.Event()

    def late(*words: Any) -> dict[str, str]:
        if asked.is_set() and not renamed.is_set():
            db.execute("alter table s.b rename to bee")
            renamed.set()
        return publish(*words)

    monkeypatch.setattr(slot, "publish", late)
    if when == "at the start":
        Capture(task, once=True).run()
        asked.set()
    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: len(read_baselines(task.control_path("baselines"))) == 2, 20)
        if not asked.is_set():
            asked.set()
            commands.give(task.commands_path, commands.PAUSE, ["s.a"], why="night load", who="me")
        wait_for(renamed.is_set, 20)
        db.execute("insert into s.bee values (1)")
        wait_for(lambda: "s.b" in log.history(task.relations_path), 20)
        wait_for(lambda: any(lake.read(task.log_path, ["RECID"])["RECID"].to_numpy() == 1), 20)


def test_an_order_that_comes_while_others_are_carried_out_is_not_passed_by(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture is between its two looks at the orders when `remove` arrives."""
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int primary key)"
    )
    task, stop, asked = load(task_file(tmp_path, database)), threading.Event(), threading.Event()
    publish = slot.publish

    def late(*words: Any) -> dict[str, str]:
        if asked.is_set():
            asked.clear()
            commands.give(task.commands_path, commands.REMOVE, ["s.b"], why="not needed", who="me")
        return publish(*words)

    monkeypatch.setattr(slot, "publish", late)
    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: len(read_baselines(task.control_path("baselines"))) == 2, 20)
        asked.set()
        commands.give(task.commands_path, commands.PAUSE, ["s.a"], why="night load", who="me")
        wait_for(lambda: not asked.is_set(), 20)
        wait_for(lambda: published(db, "tailrace_shop") == {"s.a"}, 20)


GROUPS = """groups:
  careful: {tables: [s.a, s.b], retries: 2}
  eager: {tables: [s.c], freshness: 100ms, automatic_baseline: true}
"""


@pytest.mark.slow
def test_what_cannot_be_applied_pauses_its_group_or_gets_a_new_baseline_and_the_task_goes_on(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("create schema s")
    for name in "abcd":
        db.execute(
            f"create table s.{name} (id int primary key, v text); insert into s.{name} values (1, '7')"
        )  # type: ignore[arg-type]
    path = task_file(tmp_path, database, tables="s.*", more=GROUPS)
    shop = Shop(path, db)
    drain(shop.task, spark)

    # The target of s.a refuses again and again; s.b is in the same group, s.d in none.
    shop.do(
        "insert into s.a values (2, 'x'); insert into s.b values (2, 'x'); insert into s.d values (2, 'x')"
    )
    Capture(shop.task, once=True).run()
    broken = Pipeline(shop.task, spark)
    real = broken._target.merge

    def merge(todo: Any) -> list[Any]:
        done = iter(real([one for one in todo if one.table != "s.a"]))
        return [ApplyError("the disk is full") if one.table == "s.a" else next(done) for one in todo]

    monkeypatch.setattr(broken._target, "merge", merge)
    broken.drain()
    why = "group careful: 2 errors in a row of s.a: the disk is full"
    assert [shop.state(t) for t in ("s.a", "s.b")] == [("suspended", why)] * 2
    assert shop.equal("s.d") and not shop.equal("s.a")
    tailrace("resume", str(path), "s.a", "s.b")
    Pipeline(shop.task, spark).drain()
    assert shop.equal("s.a") and shop.equal("s.b")

    # s.c: text becomes a number, and it is dropped and made again: only a new baseline helps.
    shop.do("alter table s.c alter v type int using v::int; insert into s.c values (2, 8)")
    drain(shop.task, spark)
    assert shop.state("s.c")[0] == "suspended"
    drain(shop.task, spark)
    assert shop.equal("s.c") and shop.state("s.c")[0] == "stopped"
    shop.do(
        "drop table s.c; create table s.c (id int primary key, w text); insert into s.c values (5, 'new')"
    )
    drain(shop.task, spark)
    assert shop.equal("s.c")
    shop.do("update s.c set w = 'followed'")
    drain(shop.task, spark)
    assert shop.equal("s.c")

    # s.d has no group: it is suspended alone, with the cure; a new baseline cures it.
    shop.do("alter table s.d alter v type bytea using v::bytea; insert into s.d values (3, '3')")
    drain(shop.task, spark)
    state, why = shop.state("s.d")
    assert state == "suspended" and "tailrace resync" in str(why)
    tailrace("resync", str(path), "s.d")
    drain(shop.task, spark)
    assert shop.equal("s.d")


@pytest.mark.slow
def test_a_postgresql_target_is_replaced_renamed_and_dropped(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(
        "create schema s; create table s.a (id int primary key, v text); insert into s.a values (1, 'x')"
    )
    path = task_file(tmp_path, database, more="tables: {s.*: {ddl: {rename_table: apply}}}\n")
    words = path.read_text().replace("target: {path: lake}", f"target: '{database}&schema=copy'")
    path.write_text(words.replace("tables: [s.a, s.b]", "tables: [s.a]"))
    task = load(path)

    def copied(name: str = "a") -> list[tuple[Any, ...]]:
        return db.execute(f"select id, v from copy.{name} order by id").fetchall()

    drain(task, spark)
    db.execute("insert into s.a values (2, 'y')")
    drain(task, spark)
    assert copied() == [(1, "x"), (2, "y")]
    db.execute("delete from copy.a")
    tailrace("resync", str(path), "s.a")
    db.execute("insert into s.a values (3, 'z')")
    drain(task, spark)
    assert copied() == [(1, "x"), (2, "y"), (3, "z")]

    # It is renamed at the source; capture dies when the target has the new name, and nobody knows.
    db.execute("alter table s.a rename to other; insert into s.other values (4, 'renamed')")
    drain(task, spark)
    with monkeypatch.context() as patch:
        patch.setattr(TargetRenames, "_order", _die_after_the_move)
        with pytest.raises(ZeroDivisionError):
            drain(task, spark)
    db.execute("update s.other set v = 'Z' where id = 3")
    commands.resync(task.commands_path, "s.a", "asked for", who="test")
    drain(task, spark)
    assert copied("other") == [(1, "x"), (2, "y"), (3, "Z"), (4, "renamed")]
    assert db.execute("select target from tailrace.tailrace_progress").fetchall() == [('"copy"."other"',)]
    assert shop_target(task, "s.a") == "s.other"
    assert tailrace("remove", str(path), "s.a", "--drop-target")["dropped"] == ["s.a"]
    assert db.execute("select to_regclass('copy.a'), to_regclass('copy.other')").fetchall() == [(None, None)]


_order = TargetRenames._order


def _die_after_the_move(self: TargetRenames, action: str, table: str, to: str) -> None:
    if action == commands.RENAMED:
        raise ZeroDivisionError
    _order(self, action, table, to)


def shop_target(task: Task, table: str) -> str | None:
    (mine,) = [t for t in status(task).tables if t.table == table]
    return mine.target


def test_orders_that_cannot_be_meant_are_refused(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.a (id int primary key)")
    path = str(task_file(tmp_path, database, tables="s.*", more="policies: {s.a: 1}\n"))
    Capture(load(path), once=True).run()
    for words, said in (
        (("pause", path, "s.x"), "no table of the task matches 's.x'"),
        (("resync", path, "s.a"), "no target, because of its policy"),
        (("add", path, "s.nothing"), "there is no table s.nothing"),
    ):
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 1
        assert said in str(done.exception)
    assert tailrace("add", path, "s.a")["passed"] == {"s.a": "it is captured already"}
    done = CliRunner().invoke(app, ["pause", path, "s.*"])
    assert done.output.splitlines() == [
        "paused s.a; changes are kept",
        "the task is not running: this takes effect at its next start",
    ]


@pytest.mark.parametrize(
    "database_too", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["delta", "postgresql"]
)
def test_a_target_that_goes_while_a_pipeline_runs_is_not_made_again(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, database_too: bool
) -> None:
    db.execute("create schema s; create schema lake; create table s.a (id int primary key, v text)")
    db.execute("insert into s.a values (1, 'x')")
    path = task_file(tmp_path, database, tables="s.a")
    if database_too:
        path.write_text(path.read_text().replace("path: lake", f"database: '{database}&schema=lake'"))
    shop = Shop(path, db)
    Capture(shop.task, once=True).run()
    pipeline = Pipeline(shop.task, spark)
    pipeline.drain()
    shop.do("insert into s.a values (2, 'y')")
    Capture(shop.task, once=True).run()
    pipeline.drain()
    if database_too:
        shop.do("drop table lake.a")
    else:
        shutil.rmtree(shop.task.target_path("s.a"))
    shop.do("insert into s.a values (3, 'z')")
    Capture(shop.task, once=True).run()
    pipeline.drain()
    state, why = shop.state("s.a")
    assert state == "suspended" and "the target has no baseline of the table" in str(why)
    (found,) = gone_findings(shop.task, ["s.a"])
    assert found.where == "s.a"
    commands.give(shop.task.commands_path, commands.RESYNC, ["s.a"], why="", who="me")
    drain(shop.task, spark)
    rows = db.execute("select * from lake.a").fetchall() if database_too else target_rows(shop.task, "s.a")
    assert len(rows) == 3


@pytest.mark.slow
def test_a_target_that_goes_gets_a_new_baseline_where_that_is_automatic(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute(
        "create schema s; create table s.a (id int primary key, v text); insert into s.a values (1, 'x')"
    )
    path = task_file(
        tmp_path, database, tables="s.a", more="groups: {all: {tables: [s.*], automatic_baseline: true}}\n"
    )
    shop, stop = Shop(path, db), threading.Event()
    with meanwhile(Capture(load(path), stop=stop).run, Pipeline(load(path), spark, stop=stop).run, stop=stop):
        wait_for(lambda: shop.equal("s.a"))
        shutil.rmtree(shop.task.target_path("s.a"))
        shop.do("insert into s.a values (2, 'y')")
        wait_for(lambda: shop.equal("s.a"))
    assert read_baselines(shop.task.control_path("baselines"))["s.a"].number == 2
