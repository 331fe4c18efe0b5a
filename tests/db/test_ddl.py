"""Every kind of DDL on a real server, under each policy; mappings of a task."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.config.task import Task, load
from tailrace.errors import TailraceError
from tailrace.lake import delta as lake
from tailrace.sources import open_source
from tailrace.sources.postgresql.layout import UNKNOWN_COLUMN, UNKNOWN_VALUE
from tailrace.state import commands, ddl, lifecycle
from tailrace.state.baselines import read_baselines
from tailrace.validate.repair import Repair
from tailrace.validate.sessions import Sessions
from tailrace.validate.validation import validate

from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]

FILE = """
name: ddl
home: home
source: {{url: '{url}', tables: ['d.*', m.eu, m.us]}}
target: {{path: lake}}
freshness: 100ms
capture: {{idle_advance: 1s}}
baseline: {{workers: 1}}
types: {{d.called.n: bigint}}
tables:
  d.called: {{ddl: {{rename_table: apply}}}}
  d.left: {{ddl: {{rename_table: apply}}}}
  d.right: {{ddl: {{rename_table: apply}}}}
  d.kept: {{ddl: {{add: ignore, drop: ignore, rename: ignore, widen: ignore}}}}
  d.held: {{ddl: {{add: suspend}}}}
  d.fixed: {{ddl: {{retype: ignore, rekey: ignore, recreate_table: ignore}}}}
  d.rebuilt: {{ddl: {{rename_table: apply, recreate_table: apply}}}}
  d.again: {{ddl: {{recreate_table: apply}}}}
  d.lost: {{ddl: {{drop_table: apply, drop: {drop}}}}}
  m.*: {{target: m.all, where: "n < 100", constants: {{site: "@TABLE"}}, columns: {{twice: "n * 2"}}, drop: [v]}}
"""
TABLE = "(id int primary key, v text, n int)"
NAMES = (
    "d.follows", "d.kept", "d.held", "d.gone", "d.first", "d.again", "d.lost", "m.eu", "m.us",
    "d.called", "d.left", "d.right", "d.fixed", "d.rebuilt", "d.anew", "d.behind",
)  # fmt: skip


def rows(task: Task, table: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(task.target_path(table)).to_pyarrow_table().to_pylist()
    return sorted((tuple(r[c] for c in sorted(r)) for r in found), key=repr)


def columns(task: Task, table: str) -> dict[str, str]:
    return {f.name: str(f.type) for f in lake.arrow_schema(task.target_path(table))}


def history(task: Task, table: str) -> list[tuple[str, dict[str, str]]]:
    found = lake.read(task.control_path("ddl_history")).to_pylist()
    mine = sorted((r for r in found if r["TABLE_NAME"] == table), key=lambda r: r["TABLE_VERSION"])
    told = [(r, json.loads(r["DETAILS"])) for r in mine]
    assert [r["TABLE_VERSION"] for r, _ in told] == list(range(1, len(told) + 1)), told
    return [(r["DDL_TYPE"], {n: c["action"] for n, c in d["columns"].items()}) for r, d in told]


def doubts(task: Task, table: str) -> list[tuple[str, str]]:
    found = lake.read(task.control_path("ddl_history")).to_pylist()
    told = [
        json.loads(r["DETAILS"])["columns"]
        for r in sorted(found, key=lambda r: r["CHANGE_SEQ"])
        if r["TABLE_NAME"] == table
    ]
    return [(name, c["note"]) for columns in told for name, c in columns.items() if "note" in c]


def held(task: Task) -> dict[str, str]:
    baselines = read_baselines(task.control_path("baselines"))
    return {t: one.why for t, one in lifecycle.of_task(task.commands_path, baselines).items() if one.held}


@pytest.mark.slow
def test_every_kind_of_ddl_under_its_policy(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    file = tmp_path / "ddl.yaml"
    file.write_text(FILE.format(url=database, drop="stop"))
    task = load(file)
    db.execute("create schema d; create schema m")
    for name in NAMES:
        db.execute(f"create table {name} {TABLE}; insert into {name} values (1, 'a', 10), (2, 'b', 200)")
    for name in ("m.eu", "m.us"):
        db.execute(f"alter table {name} replica identity full")
    drain(task, spark)
    assert rows(task, "m.all") == [(1, 10, "eu", 20), (1, 10, "us", 20)]  # id, n, site, twice

    for name in ("d.follows", "d.kept"):
        for n, change in enumerate(
            ("alter n type bigint", "add x int default 7", "drop v", "rename x to y"), 3
        ):
            db.execute(f"alter table {name} {change}; insert into {name} (id, n) values ({n}, {n})")
    for n, change in enumerate(
        ("add a int", "add x numeric(8,2) default 7.25", "drop a, add b int default 42", "rename x to m",
         "add d text not null default 'dé'", "drop d, add d text default 'which?'"), 3
    ):  # fmt: skip
        db.execute(f"alter table d.behind {change}; insert into d.behind (id, n) values ({n}, {n})")
    db.execute("update d.kept set n = 11 where id = 1")
    db.execute("insert into d.held values (3, 'c', 3); alter table d.held add x int")
    db.execute("insert into d.held values (4, 'd', 4, 5)")
    db.execute("insert into d.gone values (3, 'last', 3); drop table d.gone; drop table d.lost")
    db.execute("alter table d.first rename to renamed; insert into d.renamed values (3, 'c', 3)")
    db.execute("alter table d.called rename to another; insert into d.another values (3, 'c', 3)")
    db.execute("insert into d.left values (3, 'left', 3); insert into d.right values (4, 'right', 4)")
    db.execute('alter table d.left rename to tmp; alter table d.right rename to "left"')
    db.execute("alter table d.tmp rename to \"right\"; insert into d.right values (5, 'was left', 5)")
    db.execute("alter table d.fixed replica identity full; alter table d.fixed alter v type int using 7")
    db.execute("insert into d.fixed values (3, 33, 3); alter table d.fixed drop constraint fixed_pkey")
    db.execute("alter table d.fixed add primary key (n); insert into d.fixed values (4, 44, 4)")
    db.execute("update d.fixed set n = 5, v = 55 where id = 4; delete from d.fixed where id = 1")
    db.execute(f"drop table d.anew; create table d.anew {TABLE}; insert into d.anew values (1, 'new', 1)")
    db.execute("alter table d.rebuilt rename to rebuilt_old; insert into d.rebuilt_old values (3, 'old', 3)")
    db.execute(f"create table d.rebuilt {TABLE}; insert into d.rebuilt values (1, 'new', 1)")
    db.execute("alter table d.again alter n type text; insert into d.again values (3, 'c', 'old')")
    db.execute("drop table d.again; create table d.again (n int, id text primary key)")
    db.execute("insert into d.again values (1, 'new')")
    db.execute("insert into m.us values (3, 'c', 30); update m.us set n = 1 where id = 2; truncate m.eu")
    drain(task, spark)
    # Nobody said what then: no change of the new table is applied to rows of the old one.
    assert "created again" in held(task)["d.anew"]
    commands.give(task.commands_path, commands.RESUME, ["d.anew"], why="", who="test")
    db.execute("insert into d.anew values (2, 'newer', 2)")
    db.execute("alter table d.follows alter y type text; insert into d.follows values (9, 9, 'z')")
    db.execute("drop table d.fixed; create table d.fixed (id text); insert into d.fixed values ('another')")
    db.execute("insert into d.rebuilt_old values (9, 'left', 9); insert into d.rebuilt values (4, 'more', 4)")
    db.execute("insert into d.again values (2, 'newer'); update m.us set n = 300 where id = 1")
    drain(task, spark)

    assert columns(task, "d.follows") == {"id": "int32", "n": "int64", "y": "string"}
    source = db.execute("select id, n, y from d.follows").fetchall()
    assert rows(task, "d.follows") == sorted(source, key=repr)
    # Which of the two columns `d` it is, the catalog does not tell: no older row gets a value of the other one.
    source = db.execute("select b, case when id = 8 then d end, id, m, n, v from d.behind").fetchall()
    assert rows(task, "d.behind") == sorted(source, key=repr)
    told = [("a", UNKNOWN_VALUE), ("d", UNKNOWN_COLUMN), ("d", UNKNOWN_COLUMN)]
    assert doubts(task, "behind") == told
    assert columns(task, "d.kept") == {"id": "int32", "v": "string", "n": "int32"}
    assert rows(task, "d.kept") == [
        (1, 11, "a"), (2, 200, "b"), (3, 3, None), (4, 4, None), (5, 5, None), (6, 6, None),
    ]  # fmt: skip
    assert rows(task, "d.held") == [(1, 10, "a"), (2, 200, "b"), (3, 3, "c")]
    assert rows(task, "d.gone")[-1] == (3, 3, "last")
    assert rows(task, "d.first")[-1] == (3, 3, "c") and not lake.exists(task.target_path("d.renamed"))
    assert rows(task, "d.another")[-1] == (3, 3, "c") and not lake.exists(task.target_path("d.called"))
    assert columns(task, "d.another")["n"] == "int64"
    assert [r[0] for r in rows(task, "d.right")] == [1, 2, 3, 5]  # what was d.left
    assert [r[0] for r in rows(task, "d.left")] == [1, 2, 4]
    assert columns(task, "d.fixed") == {"id": "int32", "v": "string", "n": "int32"}
    assert rows(task, "d.fixed") == [(2, 200, "b"), (3, 3, "33"), (4, 5, "55")]
    assert rows(task, "d.rebuilt") == [(1, 1, "new"), (4, 4, "more")]
    assert not lake.exists(task.target_path("d.rebuilt_old"))
    assert rows(task, "d.again") == [("new", 1), ("newer", 2)]
    assert rows(task, "m.all") == [(2, 1, "us", 2), (3, 30, "us", 60)]
    assert rows(task, "d.anew") == [(1, 10, "a"), (2, 200, "b")]
    assert held(task) == {
        "d.held": "column 'x' was added", "d.gone": "the table was dropped at the source",
        "d.anew": "it was dropped and created again, or removed from the publication",
    }  # fmt: skip
    events = ddl.events(task.control_path("ddl_events"))
    assert sorted((e.table, e.kind) for e in events) == [
        ("d.again", "recreate_table"), ("d.anew", "recreate_table"), ("d.called", "rename_table"),
        ("d.first", "rename_table"), ("d.fixed", "recreate_table"), ("d.gone", "drop_table"), ("d.left", "rename_table"),
        ("d.lost", "drop_table"), ("d.rebuilt", "recreate_table"), ("d.right", "rename_table"),
    ]  # fmt: skip
    assert history(task, "kept")[1:] == [
        ("ALTER_TABLE", {"n": "ALTER"}), ("ALTER_TABLE", {"x": "ADD"}), ("ALTER_TABLE", {"v": "DROP"}),
        ("ALTER_TABLE", {"x": "ALTER"}),
    ]  # fmt: skip
    assert [kind for kind, _ in history(task, "again")] == ["CREATE_TABLE", "ALTER_TABLE", "CREATE_TABLE"]
    assert [kind for kind, _ in history(task, "gone")] == ["CREATE_TABLE", "DROP_TABLE"]

    commands.give(task.commands_path, commands.RESUME, ["d.held"], why="looked at", who="test")
    for name in ("d.called", "d.anew"):
        commands.resync(task.commands_path, name, "asked for", who="test")
    db.execute("insert into d.left values (6, 'was right', 6)")
    drain(task, spark)
    assert rows(task, "d.left")[-1] == (6, 6, "was right")
    assert rows(task, "d.anew") == [(1, 1, "new"), (2, 2, "newer")] and "d.anew" not in held(task)
    states = lifecycle.of_task(task.commands_path, read_baselines(task.control_path("baselines")))
    lost = bool(states["d.lost"].dropped) or not lake.exists(task.target_path("d.lost"))
    assert (states["d.lost"].member, lost) == ("removed", True)
    assert columns(task, "d.held") == {"id": "int32", "v": "string", "n": "int32", "x": "int32"}
    assert rows(task, "d.held")[-1] == (4, 4, "d", 5)
    DeltaTable(task.target_path("d.another")).delete("id = 3")
    repair = Repair(task, Sessions(spark))
    names = ("d.follows", "d.held", "m.us", "d.called", "d.right", "d.first")
    assert _validated(task, spark, *names, amend=repair) == {
        "d.follows": (7, True), "d.held": (4, True), "m.us": (2, True), "d.called": (3, False),
        "d.right": (4, True), "d.first": (3, True),
    }  # fmt: skip
    assert [(one.table, one.inserts, one.refused) for one in repair.done] == [("d.called", 1, None)]
    assert rows(task, "d.another")[-1] == (3, 3, "c")


def _validated(
    task: Task, spark: Any, *names: str, amend: Repair | None = None
) -> dict[str, tuple[int, bool]]:
    source = open_source(task)
    try:
        again = partial(drain, task, spark)
        report = validate(task, Sessions(spark), source, tables=names, catch_up=again, amend=amend)
    finally:
        source.close()
    return {t.table: (t.source_rows, t.equal) for t in report.tables}


@pytest.mark.slow
def test_stop_ends_the_task_before_the_change_until_the_policy_is_another(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    file = tmp_path / "ddl.yaml"
    file.write_text(FILE.format(url=database, drop="stop").replace(", m.eu, m.us", ""))
    db.execute(f"create schema d; create table d.lost {TABLE}; insert into d.lost values (1, 'a', 1)")
    drain(load(file), spark)
    db.execute(
        "insert into d.lost values (2, 'b', 2); alter table d.lost drop v; insert into d.lost values (3, 3)"
    )
    with pytest.raises(TailraceError, match=r"column 'v' was dropped, and the policy for it is `stop`"):
        drain(load(file), spark)
    assert rows(load(file), "d.lost") == [(1, 1, "a"), (2, 2, "b")]
    file.write_text(FILE.format(url=database, drop="apply").replace(", m.eu, m.us", ""))
    drain(load(file), spark)
    assert rows(load(file), "d.lost") == [(1, 1), (2, 2), (3, 3)]

    db.execute(f"insert into d.lost values (4, 4); drop table d.lost; create table d.lost {TABLE}")
    file.write_text(file.read_text().replace("drop: apply", "drop: apply, recreate_table: stop"))
    drain(load(file), spark)
    with pytest.raises(TailraceError, match="created again at the source, and its policy is `stop`"):
        drain(load(file), spark)
    assert rows(load(file), "d.lost") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    file.write_text(file.read_text().replace("recreate_table: stop", "recreate_table: apply, rekey: ignore"))
    drain(load(file), spark)
    assert columns(load(file), "d.lost") == {"id": "int32", "v": "string", "n": "int32"}

    # The target keeps its key, which old images do not have any more.
    db.execute("alter table d.lost drop constraint lost_pkey; alter table d.lost add primary key (n)")
    db.execute("insert into d.lost values (5, 'e', 5); delete from d.lost where n = 5")
    drain(load(file), spark)
    assert "NULL in the row key (id)" in held(load(file))["d.lost"]
