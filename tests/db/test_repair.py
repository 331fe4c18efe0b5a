"""`tailrace validate --repair`: targets that somebody changed are the source's again, by changes that are logged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.apply import audits
from tailrace.config.task import Task, load
from tailrace.engine.rules import Rules
from tailrace.errors import ConfigError
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.operate import control_tables
from tailrace.runtime.setup import repair_task
from tailrace.sources import open_source
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_result import MergeResult
from tailrace.validate.repair import Repair
from tailrace.validate.sessions import Sessions
from tailrace.validate.validation import TableDifference, validate

from .model import bag
from .test_model import drain, target_rows

pytestmark = [pytest.mark.db, pytest.mark.spark]

CREATE = """
create schema s;
create table s.t (id int, part text, v text, x double precision, primary key (id, part));
create table s.bag (v text, n int);
alter table s.bag replica identity full;
insert into s.t select i, 'p', 'v' || i, i / 3.0 from generate_series(1, 300) i;
insert into s.bag select 'w' || i % 3, i % 2 from generate_series(1, 60) i;
create table s.m_eu (id int primary key, n int, note text);
alter table s.m_eu replica identity full;
insert into s.m_eu select i, i * 10, 'n' from generate_series(1, 20) i;
"""
TASK = """
name: shop
home: home
source: {{url: '{url}', tables: [s.*]}}
target: {target}
baseline: {{workers: 1}}
keylog: {{mode: all}}
tables:
  s.t: {{mode: strict}}
  s.m_*:
    {{target: s.all, where: "n < 150", constants: {{site: "@TABLE"}}, columns: {{twice: "n * 2"}}, drop: [note],
      soft_delete: gone, ddl: {{add: ignore}}}}
"""


def task_of(folder: Path, url: str, target: str) -> Task:
    file = folder / "shop.yaml"
    file.write_text(TASK.format(url=url, target=target))
    return load(file)


def repair(task: Task, *tables: str) -> tuple[list[tuple[Any, ...]], bool | None]:
    """Inserts, updates and deletes by table, and whether the tables are equal afterwards."""
    _, done, after = repair_task(
        task,
        tables,
        dry_run=False,
        samples=3,
    )
    counts = [(r.table, r.inserts, r.updates, r.deletes) for r in done if r.refused is None]
    return counts, after and after.equal


def logged(task: Task) -> list[tuple[Any, ...]]:
    rows = lake.read(task.keylog_path).to_pylist()
    mine = [r for r in rows if r["run_id"].endswith("-repair")]
    keys = [
        "subscription_id",
        "change_row_type",
        "action_taken",
        "result_row_count",
        "before_key",
        "group_id",
    ]
    return sorted((tuple(r[k] for k in keys) for r in mine), key=str)


def spoil(task: Task) -> None:
    """Somebody writes to Delta targets: rows go, come and change in each."""
    more = {"id": 99, "n": 1, "twice": 1}
    for table, mine, new, extra in (
        ("s.t", "", {"v": "'spoiled'"}, [{"id": 1000, "part": "p", "v": "nobody's", "x": 0.5}]),
        ("s.all", "site = 'm_eu' AND", {"twice": "-1"}, [{"site": "m_eu", **more}, ANOTHERS]),
    ):
        path = task.target_path(table)
        DeltaTable(path).delete(f"{mine} id IN (7, 8)")
        DeltaTable(path).update(new_values=new, predicate=f"{mine} id IN (9, 10)")
        write_deltalake(path, pa.Table.from_pylist(extra, lake.arrow_schema(path)), mode="append")
    DeltaTable(task.target_path("s.bag")).delete("v = 'w1'")


_finished = audits.finished


def log_fails(done: MergeResult, table: str, rules: Rules, log: KeyLog | None) -> Any:
    if table == "s.m_eu":
        raise OSError("no disk")
    return _finished(done, table, rules, log)


def shared(task: Task) -> tuple[list[tuple[Any, ...]], dict[tuple[str, int], str]]:
    """The living rows of the Delta target of several sources, and the marks of the others."""
    rows = target_rows(task, "s.all")
    alive = sorted((r["site"], r["id"], r["n"], r["twice"]) for r in rows if r["gone"] is None)
    return alive, {(r["site"], r["id"]): r["gone"] for r in rows if r["gone"] is not None}


ANOTHERS = {"site": "us", "id": 7, "n": 1, "twice": 9}
"""A row that another task brought to the target of several sources."""
MAPPED = """
select 'm_eu' site, id, n, n * 2 from s.m_eu where n < 150 union all select 'us', 7, 1, 9 order by 1, 2
"""


@pytest.mark.slow
def test_a_delta_target_is_the_sources_again(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database, "{path: lake}")
    drain(task, spark)
    spoil(task)
    with monkeypatch.context() as broken:  # the target has it, the key log has not
        broken.setattr(audits, "finished", log_fails)
        with pytest.raises(OSError, match="no disk"):
            repair(task, "s.bag", "s.m_eu")
    (alive, marks), path = shared(task), task.target_path("s.all")
    assert (alive, list(marks)) == (db.execute(MAPPED).fetchall(), [("m_eu", 99)])
    DeltaTable(path).update(new_values={"gone": "'x'"}, predicate="site = 'm_eu' AND id IN (2, 3)")
    DeltaTable(path).delete("site = 'm_eu' AND id IN (4, 5, 6)")
    source = open_source(task)
    calls: list[None] = []

    def catch_up() -> None:
        if calls:  # after the snapshot: changes of the very rows that are repaired
            db.execute("update s.t set v = 'later' where id in (7, 9); delete from s.t where id = 8")
            db.execute("insert into s.t values (1000, 'p', 'the source''s', 1)")
            db.execute("update s.m_eu set n = 7 where id in (2, 4); update s.m_eu set n = 1000 where id = 5")
            db.execute("delete from s.m_eu where id in (11, 12)")
        calls.append(None)
        drain(task, spark)

    plan, fix = Repair(task, Sessions(spark), dry_run=True), Repair(task, Sessions(spark))
    plan.finish(())
    assert lake.progress(task.keylog_path, "shop/repair/keylog/s.m_eu") == 0  # where the repair began
    fix.finish(())  # what the crash kept from the key log

    def amend(found: Sequence[TableDifference]) -> None:
        plan(found[1:])
        with monkeypatch.context() as broken:  # the change table is there, the target has nothing of it
            broken.setattr(DeltaTarget, "merge", lambda *_: (_ for _ in ()).throw(OSError("no room")))
            with pytest.raises(OSError, match="no room"):
                Repair(task, Sessions(spark))(found[1:])
        fix(found)

    try:
        validate(task, Sessions(spark), source, tables=["s.m_eu", "s.t"], catch_up=catch_up, amend=amend)
    finally:
        source.close()
    said = [(r.table, r.inserts, r.updates, r.deletes, r.refused) for r in [*plan.done, *fix.done]]
    assert said == [("s.t", 1, 2, 0, None), ("s.m_eu", 2, 0, 0, None), ("s.t", 1, 2, 0, None)]
    db.execute("update s.t set v = 'last' where id <= 20; insert into s.bag values ('new', 1)")
    drain(task, spark)
    for table in ("s.t", "s.bag"):
        columns = [c.name for c in db.execute(f"select * from {table}").description or ()]
        have = [dict(zip(columns, r, strict=True)) for r in db.execute(f"select * from {table}").fetchall()]
        assert bag(target_rows(task, table)) == bag(have), table
    alive, now = shared(task)
    assert alive == db.execute(MAPPED).fetchall()
    assert sorted(now) == [("m_eu", 11), ("m_eu", 12), ("m_eu", 99)] and marks.items() <= now.items()
    rows = logged(task)
    assert [r for r in rows if r[0] == "s.t"] == [
        ("s.t", "I", "I", 1, None, "shop"),
        ("s.t", "U", "M", 1, 'id="10" part="p"', "shop"),
        ("s.t", "U", "M", 1, 'id="1000" part="p"', "shop"),
    ]
    assert [r[:4] for r in rows if r[0] == "s.bag"] == [("s.bag", "I", "I", 1)] * 20
    mine = [r[1:5] for r in rows if r[0] == "s.m_eu"]
    assert mine == [
        ("D", "D", 1, 'id="99" site="m_eu"'), *[("I", "I", 1, None)] * 4,
        ("U", "U", 1, 'id="10" site="m_eu"'), ("U", "U", 1, 'id="9" site="m_eu"'),
    ]  # fmt: skip
    runs = control_tables.rows(task.keylog_path, "statistic")
    assert {(r["kind"], r["state"]) for r in runs if r["run_id"].endswith("-repair")} == {("repair", "ended")}


@pytest.mark.slow
def test_a_postgresql_target_is_the_sources_again(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute(CREATE)
    db.execute("create table s.m_us (like s.m_eu including all); alter table s.m_us replica identity full")
    db.execute("insert into s.m_us table s.m_eu")
    task = task_of(tmp_path, database, f"'{database}&schema=copy'")
    drain(task, spark)
    db.execute("alter table s.m_us add more int; update s.m_us set n = 11, more = 5 where id = 1")
    db.execute("update s.t set v = 'applied' where id = 3")
    drain(task, spark)
    progress = 'select "table", upto from tailrace.tailrace_progress order by 1'
    before = db.execute(progress).fetchall()
    db.execute("delete from copy.t where id = 7; update copy.t set v = null where id = 9")
    db.execute(
        "insert into copy.t values (1000, 'p', 'nobody''s', 1); insert into copy.bag values ('more', 1)"
    )
    for site in ("m_eu", "m_us"):
        db.execute(f"delete from copy.all where site = '{site}' and id = 7")
        db.execute(f"insert into copy.all (site, id, n, twice) values ('{site}', 99, 1, 2)")
    db.execute("update copy.all set twice = 0 where id = 9 and site = 'm_us'")
    assert repair(task) == (
        [("s.bag", 0, 0, 1), ("s.m_eu", 1, 0, 1), ("s.m_us", 1, 1, 1), ("s.t", 1, 1, 1)], True
    )  # fmt: skip
    after = dict(db.execute(progress).fetchall())
    assert all(after[t] >= n for t, n in before)
    changes = {t: [r[1:4] for r in logged(task) if r[0] == t] for t in ("s.t", "s.m_eu", "s.m_us")}
    assert changes == {
        "s.t": [("D", "D", 1), ("I", "I", 1), ("U", "M", 1)],
        "s.m_eu": [("D", "D", 1), ("I", "I", 1)],
        "s.m_us": [("D", "D", 1), ("I", "I", 1), ("U", "U", 1)],
    }
    db.execute("update s.t set v = 'on' where id <= 10; update s.m_eu set n = 1 where id = 7")
    drain(task, spark)
    assert db.execute("select count(*) from (table s.t except all table copy.t) d").fetchone() == (0,)
    both = "select site, id, n, n * 2 from (select 'm_eu' site, id, n from s.m_eu"
    both += " union all select 'm_us', id, n from s.m_us) b where n < 150 order by 1, 2"
    alive = db.execute("select site, id, n, twice from copy.all where gone is null order by 1, 2").fetchall()
    assert alive == db.execute(both).fetchall()
    marked = db.execute("select site, id from copy.all where gone is not null order by 1").fetchall()
    assert marked == [("m_eu", 99), ("m_us", 99)]


def test_a_task_that_captures_and_does_not_apply_is_not_repaired(tmp_path: Path, database: str) -> None:
    from tailrace.state import live

    task = task_of(tmp_path, database, "{path: lake}")
    with live.lock(task.run_path, "capture"), pytest.raises(ConfigError, match="its pipeline does not"):
        repair(task)
