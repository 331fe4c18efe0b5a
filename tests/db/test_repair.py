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
"""


def task_of(folder: Path, url: str, target: str) -> Task:
    file = folder / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{url}', tables: [s.*]}}\ntarget: {target}\n"
        "baseline: {workers: 1}\nkeylog: {mode: all}\n"
    )
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


def test_a_delta_target_is_the_sources_again(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database, "{path: lake}")
    drain(task, spark)
    target = DeltaTable(task.target_path("s.t"))
    target.delete("id IN (7, 8)")
    target.update(new_values={"v": "'spoiled'"}, predicate="id IN (9, 10)")
    extra = {"id": [1000], "part": ["p"], "v": ["nobody's"], "x": [0.5]}
    write_deltalake(
        task.target_path("s.t"), pa.table(extra, lake.arrow_schema(task.target_path("s.t"))), mode="append"
    )
    DeltaTable(task.target_path("s.bag")).delete("v = 'w1'")
    with monkeypatch.context() as broken:  # the target has it, the key log has not
        broken.setattr(Repair, "_log", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
        with pytest.raises(OSError, match="no disk"):
            repair(task)
    source = open_source(task)
    calls: list[None] = []

    def catch_up() -> None:
        if calls:  # after the snapshot: changes of the very rows that are repaired
            db.execute("update s.t set v = 'later' where id in (7, 9); delete from s.t where id = 8")
            db.execute("insert into s.t values (1000, 'p', 'the source''s', 1)")
        calls.append(None)
        drain(task, spark)

    plan, fix = Repair(task, spark, dry_run=True), Repair(task, spark)
    plan.finish(())
    assert lake.progress(task.keylog_path, "shop/repair/keylog/s.bag") == -1
    fix.finish(())  # what the crash kept from the key log

    def amend(found: Sequence[Difference]) -> None:
        plan(found)
        with monkeypatch.context() as broken:  # the change table is there, the target has nothing of it
            broken.setattr(DeltaTarget, "apply", lambda *_: (_ for _ in ()).throw(OSError("no room")))
            with pytest.raises(OSError, match="no room"):
                Repair(task, spark)(found)
        fix(found)

    try:
        validate(task, spark, source, catch_up=catch_up, amend=amend)
    finally:
        source.close()
    for done in (plan.done, fix.done):
        assert [(r.table, r.inserts, r.updates, r.deletes, r.refused) for r in done] == [
            ("s.t", 0, 1, 0, None)
        ]
    db.execute("update s.t set v = 'last' where id <= 20; insert into s.bag values ('new', 1)")
    drain(task, spark)
    for table in ("s.t", "s.bag"):
        columns = [c.name for c in db.execute(f"select * from {table}").description or ()]
        have = [dict(zip(columns, r, strict=True)) for r in db.execute(f"select * from {table}").fetchall()]
        assert bag(target_rows(task, table)) == bag(have), table
    rows = logged(task)
    assert [r for r in rows if r[0] == "s.t"] == [("s.t", "U", "M", 1, 'id="10" part="p"', "shop")]
    assert [r[:4] for r in rows if r[0] == "s.bag"] == [("s.bag", "I", "I", 1)] * 20
    runs = control_tables.rows(task.keylog_path, "statistic")
    assert {(r["kind"], r["state"]) for r in runs if r["run_id"].endswith("-repair")} == {("repair", "ended")}


@pytest.mark.slow
def test_a_postgresql_target_is_the_sources_again(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database, f"'{database}&schema=copy'")
    drain(task, spark)
    db.execute("update s.t set v = 'applied' where id = 3")
    drain(task, spark)
    progress = 'select "table", upto from tailrace.tailrace_progress order by 1'
    before = db.execute(progress).fetchall()
    db.execute("delete from copy.t where id = 7; update copy.t set v = null where id = 9")
    db.execute(
        "insert into copy.t values (1000, 'p', 'nobody''s', 1); insert into copy.bag values ('more', 1)"
    )
    assert repair(task) == ([("s.bag", 0, 0, 1), ("s.t", 1, 1, 1)], True)
    after = dict(db.execute(progress).fetchall())
    assert all(after[t] >= n for t, n in before)
    assert [r[1:4] for r in logged(task) if r[0] == "s.t"] == [("D", "D", 1), ("I", "I", 1), ("U", "M", 1)]
    db.execute("update s.t set v = 'on' where id <= 10")
    drain(task, spark)
    assert db.execute("select count(*) from (table s.t except all table copy.t) d").fetchone() == (0,)


def test_a_running_task_is_not_repaired(tmp_path: Path, database: str) -> None:
    from tailrace.control import live

    task = task_of(tmp_path, database, "{path: lake}")
    with live.lock(task.run_path, "pipeline"), pytest.raises(ConfigError, match="the task runs"):
        repair(task)
