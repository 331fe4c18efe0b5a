"""Tables of which an UPDATE would fail at the source once they are published: no application meets that."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.capture.process import Capture
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import SourceError
from tailrace.operate.status import status
from tailrace.state import ledger, orders

from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db

SHOP = """
create schema s;
create table s.a (id int primary key, v text);
create table s.log (v text);
create table s.nothing (id int primary key, v text); alter table s.nothing replica identity nothing;
create table s.dropped (id int not null, v text); create unique index i on s.dropped (id);
alter table s.dropped replica identity using index i; drop index s.i;
create table s.deferred (id int primary key deferrable, v text);
create table s.part (id int, v text) partition by range (id);
create table s.part_1 partition of s.part for values from (0) to (9);
alter table s.part replica identity full;
insert into s.a values (1, 'x'); insert into s.log values ('x'); insert into s.nothing values (1, 'x');
insert into s.dropped values (1, 'x'); insert into s.deferred values (1, 'x'); insert into s.part values (1, 'x');
"""
WITHOUT = ["s.deferred", "s.dropped", "s.log", "s.nothing", "s.part"]


def write(folder: Path, database: str, tables: str, more: str = "") -> Task:
    folder.mkdir(exist_ok=True)
    path = folder / "t.yaml"
    path.write_text(
        f"name: t\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{database}', tables: [{tables}]}}\n"
        f"freshness: 50ms\nbaseline: {{workers: 1}}\n{more}"
    )
    return load(path)


def taken(task: Task) -> list[str]:
    return sorted(ledger.read_baselines(task.control_path("baselines")))


def published(db: psycopg.Connection) -> list[str]:
    rows = db.execute("select prrelid::regclass::text from pg_publication_rel order by 1")
    return [name for (name,) in rows]


def test_wildcards_leave_out_tables_whose_updates_would_fail(
    db: psycopg.Connection, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db.execute(SHOP)
    task = write(tmp_path, database, "s.*")
    Capture(task, once=True).run()
    assert taken(task) == published(db) == ["s.a"]
    for table in WITHOUT:
        db.execute(f"update {table} set v = 'y'")  # it fails once the table is published
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert {t for t in WITHOUT if any(f"wildcards leave out {t}" in one or f", {t}" in one for one in warned)}
    found = status(task)
    assert sorted(found.left_out) == WITHOUT
    assert found.left_out["s.log"] == (
        "it has no replica identity (no primary key, or a deferrable one): UPDATE and DELETE would fail at the "
        "source"
    )


def test_what_wildcards_leave_out_is_listed_with_reasons(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.execute(SHOP)
    db.execute("create view s.v as select 1; create unlogged table s.u (id int primary key)")
    said = CliRunner().invoke(app, ["init", database, "-t", "s.*", "-o", str(tmp_path / "i.yaml")])
    words = " ".join(said.output.split())
    assert said.exit_code == 0 and "for 1 table" in words
    for one in ("wildcards leave out s.v: a view", "wildcards leave out s.u: an unlogged table", "s.log"):
        assert one in words
    task = write(tmp_path / "i", database, "s.*")
    checked = CliRunner().invoke(app, ["check", str(tmp_path / "i" / "t.yaml")])
    assert "wildcards leave out s.v: a view" in checked.output and checked.exit_code == 0
    Capture(task, once=True).run()
    every = CliRunner().invoke(app, ["status", str(tmp_path / "i" / "t.yaml"), "--all"])
    assert "left out s.v: a view" in every.output and "left out s.log: it has no replica" in every.output


def test_named_table_without_identity_is_suspended_and_the_reason_says_what_to_write(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.execute(SHOP)
    task = write(tmp_path, database, "s.a, s.log")
    ran = CliRunner().invoke(app, ["check", str(tmp_path / "t.yaml")])
    assert ran.exit_code == 3 and "identity: full" in ran.output
    Capture(task, once=True).run()
    (one,) = orders.read(task.orders_path)
    assert (one.table, one.who) == ("s.log", "check") and "tables: {'s.log': {identity: full}}" in one.why
    assert taken(task) == ["s.a"]
    db.execute("update s.log set v = 'y'")
    alone = write(tmp_path / "alone", database, "s.log")
    with pytest.raises(SourceError, match=r"s\.log"):  # nothing would run
        Capture(alone, once=True).run()


def test_with_identity_full_a_table_is_given_one_before_it_is_published(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.execute(SHOP)
    task = write(tmp_path, database, "s.a, s.log, s.p*", "tables: {'s.*': {identity: full}}\n")
    Capture(task, once=True).run()
    assert taken(task) == ["s.a", "s.log", "s.part"]
    rows = db.execute(
        "select relname from pg_class where relreplident = 'f' and relnamespace = 's'::regnamespace order by 1"
    )
    assert [name for (name,) in rows] == ["a", "log", "part", "part_1"]
    db.execute("update s.log set v = 'y'; update s.part set v = 'y'; update s.a set v = 'y'")


@pytest.mark.slow
def test_a_table_that_loses_its_key_leaves_the_publication_until_it_has_one_again(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.execute(
        "create schema s; create table s.a (id int primary key, v text); create table s.b (id int primary key)"
    )
    db.execute("insert into s.a values (1, 'x')")
    task, stop = write(tmp_path, database, "s.*"), threading.Event()

    def held() -> str | None:
        return next(t.state for t in status(task).tables if t.table == "s.a")

    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        wait_for(lambda: taken(task) == ["s.a", "s.b"])
        db.execute("alter table s.a drop constraint a_pkey")
        wait_for(lambda: held() == "suspended" and published(db) == ["s.b"], 20)
        db.execute("update s.a set v = 'y'")
        why = next(t.why for t in status(task).tables if t.table == "s.a")
        assert why is not None and "no replica identity" in why and "tailrace resync TASK s.a" in why
        db.execute("alter table s.a add primary key (id)")
        orders.resync(task.orders_path, "s.a", "it has a key again", who="me")
        wait_for(lambda: published(db) == ["s.a", "s.b"])
        wait_for(lambda: ledger.baseline_numbers(task.control_path("baselines")) == {"s.a": 2, "s.b": 1})


def test_an_order_to_add_what_cannot_be_captured_is_refused_with_the_reason(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.execute(SHOP)
    db.execute(
        "create view s.v as select 1; create materialized view s.m as select 1; create unlogged table s.u ()"
    )
    db.execute("create temporary table gone (id int primary key)")
    db.execute("create foreign data wrapper w; create server f foreign data wrapper w")
    db.execute("create foreign table s.f (id int) server f")
    write(tmp_path, database, "s.a")

    def add(table: str) -> tuple[int, str]:
        ran = CliRunner().invoke(app, ["add", str(tmp_path / "t.yaml"), table])
        return ran.exit_code, " ".join(f"{ran.output} {ran.exception}".split())

    reasons = {
        "s.v": "a view", "s.m": "a materialized view", "s.u": "an unlogged table", "s.f": "a foreign table",
        "s.log": "it has no replica identity", "pg_temp.gone": "a temporary table",
    }  # fmt: skip
    for table, why in reasons.items():
        code, said = add(table)
        assert code != 0 and table in said and why in said, said
    code, said = add("s.*")
    assert code == 0 and "skipped s.v: a view" in said and "skipped s.log: it has no replica identity" in said
