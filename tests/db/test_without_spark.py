"""On one machine a pipeline needs no JVM, whatever happens to tables, with a key or without: every kind of target
and rules, truncates, new layouts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import tailrace
from tailrace.capture import baselines
from tailrace.capture.process import Capture
from tailrace.config.task import load
from tailrace.execution import BackgroundSession
from tailrace.lake import delta as lake
from tailrace.model import mask
from tailrace.operate.status import status
from tailrace.runtime import setup
from tailrace.runtime.pipeline import Pipeline
from tailrace.state import commands

pytestmark = pytest.mark.db
CREATE = """
create schema s;
create table s.t (id int primary key, v text, n numeric(9,2));
create table s.other (id int, part int, v text, primary key (id, part));
alter table s.other replica identity full;
alter table s.t alter v set storage external;
create table s.log (at int, what text);
alter table s.log replica identity full;
alter table s.log alter what set storage external;
insert into s.t select i, 'v' || i, i / 3.0 from generate_series(1, 500) i;
insert into s.t values (400000, repeat('x', 9000), 1);
insert into s.log values (1, 'a'), (1, 'a'), (null, null), (3, repeat('y', 9000));
"""
ROUNDS = [
    "insert into s.t select i, 'w', 1 from generate_series(501, 900) i; delete from s.t where id <= 10; "
    "insert into s.log values (1, 'a'), (2, 'b'), (2, 'b')",
    "delete from s.log where ctid = (select min(ctid) from s.log where at = 1); update s.log set at = 5 where at > 2 or at is null; "
    "insert into s.log values (null, null), (7, 'new'); update s.log set what = 'B' where at = 2",
    "update s.t set id = id + 5000 where id % 50 = 0 or n = 1 and id > 5000; insert into s.other values (1, 1, 'a'), (1, 2, null)",
    "update s.other set v = 'b', part = 7 where part = 2; delete from s.t where id between 5200 and 9999; insert into s.t values (1)",
    "insert into s.other values (2, 2, 'x'); truncate s.other; insert into s.other values (3, 3, 'c'); "
    "update s.other set v = null, id = 4; delete from s.t where id = 1; insert into s.t values (1)",
    "alter table s.t add extra int default 7; insert into s.t values (2000, 'x', 1, 8); "
    "alter table s.t rename v to word; update s.t set word = 'new' where id = 20; "
    "alter table s.t alter n type numeric(12,2); update s.t set n = 1e9 where id = 21; "
    "alter table s.other add flag bool; insert into s.other values (7, 7, 'x', true); truncate s.other; "
    "alter table s.other drop v; insert into s.other values (9, 9, false); "
    "alter table s.log add more int; insert into s.log values (1, 'a', 5); update s.log set more = 6 where at = 1; "
    "delete from s.log where at = 5; truncate s.log; insert into s.log values (8, 'z', null), (8, 'z', null); "
    "delete from s.log where ctid = (select min(ctid) from s.log)",
]
MAPPED = (
    "tables: {s.t: {target: s.made, drop: [n], constants: {site: here}, key: [id]}, s.log: {target: s.lines}, "
    "s.other: {columns: {place: part, again: part}}}\n"
)
KINDS = {
    "delta": "",
    "rules and key log": "apply: {mode: strict}\nkeylog: {mode: all}\n",
    "soft delete": "apply: {mode: soft_delete}\n",
    "archive": (
        "apply: {mode: archive}\nkeylog: {mode: keys}\ntables: {s.t: {target: s.made}, s.log: {target: s.lines}}\n"
    ),
    "postgresql": "target: '{url}'\nkeylog: {{mode: all}}\n",
    "mapped, postgresql": f"target: '{{url}}'\n{MAPPED.replace('{', '{{').replace('}', '}}')}",
    "mapped, transactional": f"apply: {{mode: strict, transactional: true}}\nkeylog: {{mode: all}}\n{MAPPED}",
    "transactional, postgresql": "target: '{url}'\napply: {{transactional: true}}\n",
}
QUICK = ("rules and key log",)
"""What newcomers run."""
BATCHES = [ROUNDS[:2], ROUNDS[2:4], [ROUNDS[4]], [ROUNDS[5]]]
"""The transactions of each batch."""


SEQ, OPER, MASK = (f"header__{n}" for n in ("change_seq", "change_oper", "column_mask"))


def archived(path: str) -> list[tuple[Any, ...]]:
    """The changes that an archive or a change table has: sequence, operation, columns carried, their values."""
    found = lake.read(path)
    names = found.schema.names
    data = sorted(n for n in names if not n.startswith("header__"))
    return sorted(
        (r[SEQ], r[OPER], [n for n in data if r[MASK] is None or names.index(n) in mask.decode(r[MASK])],
         [r[n] for n in data])
        for r in found.to_pylist() if r[SEQ] and r[OPER] in "IUD"
    )  # fmt: skip


def never() -> None:
    raise AssertionError("Spark was asked for")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_pipeline_on_one_machine_starts_no_jvm(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, kind: str
) -> None:
    """The shared session is for the comparison at the end: it applies changes of older layouts to a version."""
    db.execute(CREATE)
    url = database + ("&" if "?" in database else "?") + "schema=copies"
    file = tmp_path / "shop.yaml"
    tables = "s.t, s.other" if kind == "soft delete" else "s.*"  # which needs a key
    more = KINDS[kind].format(url=url) if "postgresql" in kind else KINDS[kind]
    file.write_text(f"name: shop\nsource: {{url: '{database}', tables: [{tables}]}}\n{more}")
    task = load(file)
    Capture(task, once=True).run()
    for batch in BATCHES:
        for changes in batch:
            db.execute(changes)
        Capture(task, once=True).run()
        Pipeline(task, BackgroundSession(never).as_session).drain()  # type: ignore[arg-type]
        if "archive" in kind and batch != BATCHES[-1]:  # which gives what is archived another layout
            for table in ("s.t", "s.other", "s.log"):
                to = task.table(table).target or table
                assert archived(task.target_path(to)) == archived(task.changes_path(table))
    if "key log" in more:
        log = lake.read(task.keylog_path)
        assert pc.all(pc.equal(log["result_error"].fill_null(""), "")).as_py(), log
    if kind not in ("archive", "soft delete"):
        found = setup.validate_task(file, task, (), timeout_s=60, samples=3)
        assert [(t.table, t.equal) for t in found.tables] == [(t, True) for t in ("s.log", "s.other", "s.t")]
    elif "archive" in kind:
        for table in ("s.t", "s.other", "s.log"):
            to = task.table(table).target or table
            assert len(archived(task.target_path(to))) == len(archived(task.changes_path(table)))
    else:
        rows = lake.read(task.target_path("s.t")).select(["id", "_deleted"]).to_pylist()
        assert {r["id"] for r in rows if r["_deleted"]} >= {2, 10, 5250}
        source = {row[0] for row in db.execute("select id from s.t")}
        assert {r["id"] for r in rows if not r["_deleted"]} == source
        assert len(source) == 878


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rules and key log", "delta", "postgresql"])
def test_changes_of_an_open_window_start_no_jvm(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of the changes made before and after a table's rows are read, those before are in the rows already."""
    db.execute(CREATE)
    url = database + ("&" if "?" in database else "?") + "schema=copies"
    more = KINDS[kind].format(url=url) if kind == "postgresql" else KINDS[kind]
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{url: '{database}', tables: [s.t, s.other]}}\n{more}"
        "baseline: {window: open, workers: 1}\n"
    )
    task, take = load(file), baselines.baseline_reader.take_baselines

    def read_meanwhile(*args: Any) -> Any:
        db.execute("update s.t set v = 'early' where id % 5 = 0; delete from s.t where id % 13 = 0")
        db.execute(
            "insert into s.t select max(id) + 1, 'new', 1 from s.t; insert into s.other values (1, 1, 'a')"
        )
        made = take(*args)
        db.execute("update s.t set v = 'late' where id % 7 = 0; delete from s.t where id % 11 = 0")
        db.execute("insert into s.t values (13, 'again', 2); delete from s.other")
        return made

    monkeypatch.setattr(baselines.baseline_reader, "take_baselines", read_meanwhile)
    Capture(task, once=True).run()
    monkeypatch.undo()
    db.execute("update s.t set n = 0 where id < 100")
    Capture(task, once=True).run()
    Pipeline(task, BackgroundSession(never).as_session).drain()  # type: ignore[arg-type]
    found = setup.validate_task(file, task, (), timeout_s=60, samples=3)
    assert [(t.table, t.equal) for t in found.tables] == [("s.other", True), ("s.t", True)]
    if kind != "delta":
        log = lake.read(task.keylog_path)
        assert pc.all(pc.equal(log["result_error"].fill_null(""), "")).as_py(), log


def test_each_transaction_is_a_commit_of_the_target(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """In their order, each as a whole; what several of them do to a row is seen one after the other."""
    db.execute("create table t (id int primary key, v text); create table u (id int primary key)")
    file = tmp_path / "shop.yaml"
    more = "apply: {mode: strict, transactional: true}\nkeylog: {mode: all}\n"
    file.write_text(f"name: shop\nsource: {{url: '{database}', tables: ['public.*']}}\n{more}")
    task = load(file)
    Capture(task, once=True).run()
    for one in (
        "insert into t values (1, 'a'), (2, 'b')",
        "insert into u values (1); update t set v = 'c' where id = 1; update t set id = 3 where id = 2",
        "delete from t where id = 1",
        "insert into u values (2)",
        "insert into t values (1, 'd'); delete from t where id = 3; insert into t values (4, null)",
    ):
        db.execute(one)
    Capture(task, once=True).run()
    Pipeline(task, BackgroundSession(never).as_session).drain()  # type: ignore[arg-type]
    path = task.target_path("public.t")
    states = [
        sorted((r["id"], r["v"]) for r in DeltaTable(path, version=n).to_pyarrow_table().to_pylist())
        for n in range(1, lake.version(path) + 1)
    ]
    assert [s for was, s in pairwise([[], *states]) if s != was] == [
        [(1, "a"), (2, "b")], [(1, "c"), (3, "b")], [(3, "b")], [(1, "d"), (4, None)],
    ]  # fmt: skip
    log = lake.read(task.keylog_path).to_pylist()
    assert [r["action_taken"] for r in sorted(log, key=lambda r: r["keylog_sort"])
            if r["subscription_id"] == "public.t"] == list("IIMMDIDI")  # fmt: skip
    assert len(DeltaTable(task.keylog_path).file_uris()) == 1  # of both tables, all transactions


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    ["", "apply: {mode: strict}\nkeylog: {mode: all}\n", "apply: {mode: soft_delete}\n"],
)
def test_sources_of_one_target_start_no_jvm(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """Their baselines, changes, a new baseline of one, validation and repair."""
    monkeypatch.setattr("tailrace.runtime.session.session", lambda *_, **__: never())
    db.execute(
        "create schema eu; create schema us; create table eu.t (id int primary key, v text); "
        "create table us.t (id int primary key, v text); insert into eu.t values (1, 'a'), (2, 'b'); "
        "insert into us.t values (1, 'x'), (3, 'y')"
    )
    one = "{target: all.t, constants: {site: '@SCHEMA'}, key: [site, id]}"
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{url: '{database}', tables: [eu.t, us.t]}}\ntables: {{eu.t: {one}, us.t: {one}}}\n"
        f"{more}"
    )
    task = load(file)

    def rows() -> list[tuple[Any, ...]]:
        found = lake.read(task.target_path("all.t")).to_pylist()
        return sorted((r["site"], r["id"], r["v"]) for r in found if not r.get("_deleted"))

    def go(changes: str) -> None:
        db.execute(changes)
        Capture(task, once=True).run()
        Pipeline(task, BackgroundSession(never).as_session).drain()  # type: ignore[arg-type]

    go("select 1")
    assert rows() == [("eu", 1, "a"), ("eu", 2, "b"), ("us", 1, "x"), ("us", 3, "y")]
    go(
        "update eu.t set v = 'A' where id = 1; delete from us.t where id = 1; insert into us.t values (4, 'z')"
    )
    go("update eu.t set id = 9 where id = 2; insert into eu.t values (4, null)")
    want = [("eu", 1, "A"), ("eu", 4, None), ("eu", 9, "b"), ("us", 3, "y"), ("us", 4, "z")]
    assert rows() == want
    commands.resync(task.commands_path, "us.t", "a test")
    go("insert into us.t values (5, 'late')")
    go("insert into us.t values (6, 'later')")
    go("insert into eu.t values (5, 'too')")
    want = sorted([*want, ("us", 5, "late"), ("us", 6, "later"), ("eu", 5, "too")], key=str)
    assert rows() == want
    path = task.target_path("all.t")
    DeltaTable(path).delete("id = 4")
    found, done, after = setup.repair_task(task, (), dry_run=False, samples=3)
    assert [(t.table, t.differing_rows) for t in found.tables] == [("eu.t", 1), ("us.t", 1)]
    assert [one.refused for one in done] == [None, None]
    assert after is not None and after.equal
    assert rows() == want


def test_a_table_that_is_suspended_before_its_first_waiting_change_is_behind(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')")
    file = tmp_path / "shop.yaml"
    rules = "apply: {mode: strict, on: {update_missing: suspend}}\n"
    file.write_text(f"name: shop\nsource: {{url: '{database}', tables: [public.t]}}\n{rules}")
    task = load(file)

    def go() -> None:
        Capture(task, once=True).run()
        Pipeline(task, BackgroundSession(never).as_session).drain()  # type: ignore[arg-type]

    def behind() -> list[tuple[str, int]]:
        return [(one.table, one.behind) for one in status(task).tables]

    go()
    assert behind() == [("public.t", 0)]
    DeltaTable(task.target_path("public.t")).delete("id = 1")
    db.execute("update t set v = 'x' where id = 1; update t set v = 'y' where id = 2")
    go()
    assert behind() == [("public.t", 2)]
    commands.give(task.commands_path, commands.RESUME, ["public.t"], why="", who="a test")
    go()  # it is suspended again, by the same change
    assert behind() == [("public.t", 2)]
    db.execute("update t set v = 'z' where id = 2")
    go()
    assert behind() == [("public.t", 3)]


def test_rows_from_before_the_first_mark_are_living(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """The column that marks deleted rows comes with the first change: the baseline's file is older."""
    db.execute("create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{url: '{database}', tables: [public.t]}}\napply: {{mode: soft_delete}}\n"
    )
    task = load(file)
    for change in ("select 1", "insert into t values (3, 'c')"):
        db.execute(change)
        Capture(task, once=True).run()
        Pipeline(task, BackgroundSession(never).as_session).drain()  # type: ignore[arg-type]
    found = tailrace.open(file).table("public.t").current().rows()
    assert sorted((r["id"], r["v"]) for r in found) == [(1, "a"), (2, "b"), (3, "c")]
    (done,) = setup.validate_task(file, task, (), timeout_s=60, samples=3).tables
    assert (done.source_rows, done.target_rows, done.equal) == (3, 3, True)
