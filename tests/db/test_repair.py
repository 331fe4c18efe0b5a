"""`tailrace validate --repair`: targets that somebody changed are the source's again, by changes that are logged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace import lake
from tailrace.apply.loading import CHANGED
from tailrace.apply.targets.delta import DeltaTarget
from tailrace.control.task import Task, load
from tailrace.errors import ConfigError
from tailrace.operate import control_tables
from tailrace.repair import Repair
from tailrace.setup import repair_task
from tailrace.sources import open_source
from tailrace.validate import Difference, validate

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
create table s.m_us (id int primary key, n int, note text);
alter table s.m_eu replica identity full;
alter table s.m_us replica identity full;
insert into s.m_eu select i, i * 10, 'n' from generate_series(1, 20) i;
insert into s.m_us table s.m_eu;
"""
TASK = """
name: shop
home: home
source: {{url: '{url}', tables: [s.*]}}
target: {target}
baseline: {{workers: 1}}
keylog: {{mode: all}}
tables:
  s.soft: {{soft_delete: gone}}
  s.m_*:
    {{target: s.all, where: "n < {below}", constants: {{site: "@TABLE"}}, columns: {{twice: "n * 2"}},
      drop: [note], {rules}, ddl: {{add: ignore, drop: ignore}}}}
"""


def task_of(folder: Path, url: str, target: str, rules: str, below: int = 150) -> Task:
    file = folder / "shop.yaml"
    file.write_text(TASK.format(url=url, target=target, rules=rules, below=below))
    return load(file)


def repair(task: Task, dry_run: bool = False) -> tuple[list[tuple[Any, ...]], bool | None]:
    """Inserts, updates and deletes by table, and whether the tables are equal afterwards."""
    _, done, after = repair_task(task, (), dry_run=dry_run, samples=3, progress=lambda _: None)
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
    for table, mine, new, extra in (
        ("s.t", "", {"v": "'spoiled'"}, {"id": 1000, "part": "p", "v": "nobody's", "x": 0.5}),
        ("s.all", "site = 'm_eu' AND", {"twice": "-1"}, {"site": "m_eu", "id": 99, "n": 1, "twice": 2}),
    ):
        path = task.target_path(table)
        DeltaTable(path).delete(f"{mine} id IN (7, 8)")
        DeltaTable(path).update(new_values=new, predicate=f"{mine} id IN (9, 10)")
        write_deltalake(path, pa.Table.from_pylist([extra], lake.arrow_schema(path)), mode="append")
    DeltaTable(task.target_path("s.bag")).delete("v = 'w1'")


def fails_for(table: str, work: Any, why: str) -> Any:
    """A step of a repair, which fails for a table."""

    def failing(self: Any, *given: Any) -> Any:
        if table in given or table == getattr(given[0], "table", None):
            raise OSError(why)
        return work(self, *given)

    return failing


def shared(task: Task) -> tuple[list[tuple[Any, ...]], dict[tuple[str, int], str]]:
    """The living rows of a Delta target of two sources, and the marks of the others."""
    rows = target_rows(task, "s.all")
    alive = sorted((r["site"], r["id"], r["n"], r["twice"]) for r in rows if r["gone"] is None)
    return alive, {(r["site"], r["id"]): r["gone"] for r in rows if r["gone"] is not None}


MAPPED = """
select * from (select 'm_eu' site, id, n, n * 2 from s.m_eu union all
               select 'm_us', id, n, n * 2 from s.m_us) m where n < 150 order by 1, 2
"""


def test_a_delta_target_is_the_sources_again(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database, "{path: lake}", "soft_delete: gone")
    drain(task, spark)
    spoil(task)
    with monkeypatch.context() as broken:  # the target has it, the key log has not
        broken.setattr(Repair, "_log", fails_for("s.m_eu", Repair._log, "no disk"))
        with pytest.raises(OSError, match="no disk"):
            repair(task)
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
            db.execute("delete from s.m_eu where id = 11")
        else:  # DDL that the target ignores; rows that are marked at the position already
            db.execute("alter table s.m_eu add more int; insert into s.m_eu values (21, 1, 'x', 5)")
            db.execute("delete from s.m_eu where id in (12, 13)")
        calls.append(None)
        drain(task, spark)

    plan, fix = Repair(task, spark, dry_run=True), Repair(task, spark)
    plan.finish(())
    assert lake.progress(task.keylog_path, "shop/repair/keylog/s.m_eu") == -1
    fix.finish(())  # what the crash kept from the key log

    def amend(found: Sequence[Difference]) -> None:
        plan(found)
        with monkeypatch.context() as broken:  # the change table is there, the target has nothing of it
            broken.setattr(DeltaTarget, "apply", fails_for("s.m_eu", DeltaTarget.apply, "no room"))
            with pytest.raises(OSError, match="no room"):
                Repair(task, spark)(found)
        fix(found)

    try:
        validate(task, spark, source, catch_up=catch_up, amend=amend)
    finally:
        source.close()
    for done in (plan.done, fix.done):
        assert [(r.table, r.inserts, r.updates, r.deletes, r.refused) for r in done] == [
            ("s.m_eu", 2, 0, 0, None), ("s.t", 0, 1, 0, None),
        ]  # fmt: skip
    db.execute("update s.t set v = 'last' where id <= 20; insert into s.bag values ('new', 1)")
    db.execute("update s.m_eu set n = 3 where id = 3; insert into s.m_eu values (12, 12, 'again')")
    drain(task, spark)
    for table in ("s.t", "s.bag"):
        columns = [c.name for c in db.execute(f"select * from {table}").description or ()]
        have = [dict(zip(columns, r, strict=True)) for r in db.execute(f"select * from {table}").fetchall()]
        assert bag(target_rows(task, table)) == bag(have), table
    alive, now = shared(task)
    assert alive == db.execute(MAPPED).fetchall()
    assert sorted(now) == [("m_eu", 11), ("m_eu", 13), ("m_eu", 99)] and marks.items() <= now.items()
    app = f"{task.apply_app}/repair"
    assert [lake.progress(path, f"{app}/s.m_{one}") for one in ("eu", "us")] == [9, -1]
    rows = logged(task)
    assert [r for r in rows if r[0] == "s.t"] == [("s.t", "U", "U", 1, 'id="10" part="p"', "shop")]
    assert [r[:4] for r in rows if r[0] == "s.bag"] == [("s.bag", "I", "I", 1)] * 20
    assert [r[1:5] for r in rows if r[0] == "s.m_eu"] == [
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
    db.execute(
        "create table s.soft (id int primary key, v text); insert into s.soft values (1, 'a'), (2, 'b')"
    )
    target = f"'{database}&schema=copy'"
    task = task_of(tmp_path, database, target, "mode: strict")
    drain(task, spark)
    db.execute("update s.t set v = 'applied' where id = 3")
    drain(task, spark)
    progress = 'select "table", upto from tailrace.tailrace_progress order by 1'
    before = db.execute(progress).fetchall()
    db.execute("delete from copy.t where id = 7; update copy.t set v = null where id = 9")
    db.execute(
        "insert into copy.t values (1000, 'p', 'nobody''s', 1); insert into copy.bag values ('more', 1)"
    )
    db.execute("delete from copy.soft where id = 1; insert into copy.soft values (99, 'nobody''s')")
    db.execute("delete from copy.all where id = 7 and site = 'm_eu'")
    db.execute("update copy.all set twice = 0 where id = 9 and site = 'm_eu'")
    assert repair(task) == (
        [("s.bag", 0, 0, 1), ("s.m_eu", 1, 1, 0), ("s.soft", 1, 0, 1), ("s.t", 1, 1, 1)], True
    )  # fmt: skip
    after = dict(db.execute(progress).fetchall())
    assert all(after[t] >= n for t, n in before)
    repaired = db.execute('select "table" from tailrace.tailrace_repairs order by 1').fetchall()
    assert repaired == [("s.bag",), ("s.m_eu",), ("s.soft",), ("s.t",)]
    assert [r[1:4] for r in logged(task) if r[0] == "s.t"] == [("D", "D", 1), ("I", "I", 1), ("U", "U", 1)]
    assert [r[1:4] for r in logged(task) if r[0] == "s.m_eu"] == [("I", "I", 1), ("U", "M", 1)]
    assert [r[1:4] for r in logged(task) if r[0] == "s.soft"] == [("D", "D", 1), ("I", "I", 1)]
    db.execute("update s.t set v = 'on' where id <= 10; update s.m_eu set n = 1 where id = 7")
    db.execute("delete from s.soft where id = 1")
    drain(task, spark)
    assert db.execute("select count(*) from (table s.t except all table copy.t) d").fetchone() == (0,)
    mapped = db.execute("select site, id, n, twice from copy.all order by 1, 2").fetchall()
    assert mapped == db.execute(MAPPED).fetchall()
    soft = "select id, v, gone is null from copy.soft order by 1"
    assert db.execute(soft).fetchall() == [(1, "a", False), (2, "b", True), (99, "nobody's", False)]

    db.execute("update copy.soft set gone = 'somebody' where id = 2")
    task = task_of(tmp_path, database, target, "mode: strict", below=100)
    _, done, then = repair_task(task, (), dry_run=False, samples=3, progress=lambda _: None)
    assert [(r.table, r.inserts, r.refused) for r in done] == [
        ("s.m_eu", 0, CHANGED), ("s.m_us", 0, CHANGED), ("s.soft", 1, None),
    ]  # fmt: skip
    assert then is not None and then.equal
    assert db.execute(soft).fetchall() == [(1, "a", False), (2, "b", True), (99, "nobody's", False)]
    assert mapped == db.execute("select site, id, n, twice from copy.all order by 1, 2").fetchall()


def test_a_running_task_is_not_repaired(tmp_path: Path, database: str) -> None:
    from tailrace.control import live

    task = task_of(tmp_path, database, "{path: lake}", "mode: strict")
    with live.lock(task.run_path, "pipeline"), pytest.raises(ConfigError, match="the task runs"):
        repair(task)
