"""A task file with rules: a real source, baselines, a change of layout, and a conflict made on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.config.task import Task, load
from tailrace.lake import delta as lake

from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]

TABLES = ("strict", "soft", "kept", "plain", "bag")
TASK = """\
name: ruled
home: home
source: {{url: '{url}', tables: ['s.*']}}
target: {target}
baseline: {{workers: 1}}
apply: {{mode: strict}}
tables:
  s.soft: {{soft_delete: gone}}
  s.kept: {{mode: archive}}
  s.plain: {{mode: upsert, transactional: true}}
  s.bag: {{mode: upsert}}
keylog: {{mode: all}}
"""


@pytest.fixture(params=["delta", "postgresql"])
def task(tmp_path: Path, database: str, db: psycopg.Connection, request: pytest.FixtureRequest) -> Task:
    db.execute("create schema s")
    for name in TABLES:
        key = "" if name == "bag" else "primary key"
        db.execute(f"create table s.{name} (id int {key}, v text)")
        db.execute(f"insert into s.{name} select i, 'v' || i from generate_series(1, 3) i")
    db.execute("alter table s.bag replica identity full")
    target = "{path: lake}" if request.param == "delta" else f"'{database}&schema=lake'"
    file = tmp_path / "ruled.yaml"
    file.write_text(TASK.format(url=database, target=target))
    return load(file)


def target(task: Task, table: str, columns: str) -> list[tuple[Any, ...]]:
    names = columns.split(", ")
    if task.target.database:
        with psycopg.connect(task.source.url) as db:
            rows = db.execute(f"select {columns} from lake.{table}").fetchall()
    else:
        rows = [tuple(r.values()) for r in lake.read(task.target_path(f"s.{table}"), names).to_pylist()]
    return sorted(rows, key=repr)


def lose(task: Task, key: int) -> None:
    """Somebody deletes a row of a target."""
    if task.target.database:
        with psycopg.connect(task.source.url) as db:
            db.execute(f"delete from lake.strict where id = {key}")
    else:
        DeltaTable(task.target_path("s.strict")).delete(f"id = {key}")


@pytest.mark.slow
def test_a_task_under_rules(task: Task, db: psycopg.Connection, spark: object) -> None:
    drain(task, spark)
    lose(task, 2)
    for name in TABLES:
        db.execute(f"update s.{name} set v = 'new' where id = 2")
        db.execute(f"delete from s.{name} where id = 3")
    drain(task, spark)
    for name in TABLES:
        db.execute(f"alter table s.{name} add w int")
        db.execute(f"insert into s.{name} values (4, 'four', 40)")
    drain(task, spark)
    four = (4, "four", 40)
    assert target(task, "strict", "id, v, w") == [(1, "v1", None), four]
    soft = target(task, "soft", "id, v, w, gone")
    assert [r[:3] for r in soft] == [(1, "v1", None), (2, "new", None), (3, "v3", None), four]
    assert [r[3] is not None for r in soft] == [False, False, True, False]
    kept = target(task, "kept", "header__change_oper, id, w")
    assert sorted(map(repr, kept)) == sorted(
        map(
            repr,
            [(None, 1, None), (None, 2, None), (None, 3, None), ("U", 2, None), ("D", 3, None), ("I", 4, 40)],
        )
    )
    for name in ("plain", "bag"):
        assert target(task, name, "id, v, w") == [(1, "v1", None), (2, "new", None), four]
    log = lake.read(task.keylog_path).to_pylist()
    found = {
        name: [
            (r["change_row_type"], r["action_taken"], r["result_row_count"], r["flagged_count"])
            for r in sorted(log, key=lambda r: r["keylog_sort"])
            if r["subscription_id"] == f"s.{name}"
        ]
        for name in TABLES
    }
    assert found == {
        "strict": [("U", "M", 0, 1), ("D", "D", 1, 1), ("I", "I", 1, 1)],
        "soft": [("U", "U", 1, 0), ("D", "D", 1, 0), ("I", "I", 1, 0)],
        "kept": [("U", "I", 1, 0), ("D", "I", 1, 0), ("I", "I", 1, 0)],
        "plain": [("U", "U", 1, 0), ("D", "D", 1, 0), ("I", "I", 1, 0)],
        "bag": [("U", "U", 1, 0), ("D", "D", 1, 0), ("I", "I", 1, 0)],
    }
    keyed = [name for name in TABLES if name != "bag"]
    for name in keyed:
        db.execute(f"update s.{name} set id = 9 where id = 4")
    drain(task, spark)
    moved = {
        r["subscription_id"]: (r["before_key"], r["after_key"])
        for r in lake.read(task.keylog_path).to_pylist()
        if r["after_key"] and r["subscription_id"] != "s.bag"
    }
    assert moved == {f"s.{name}": ('id="4"', 'id="9"') for name in keyed}
