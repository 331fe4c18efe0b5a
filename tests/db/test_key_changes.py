"""Primary keys that are added, moved or dropped under REPLICA IDENTITY FULL: every target has PostgreSQL's rows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import SourceError
from tailrace.lake import log
from tailrace.sources.postgresql.source import PostgresSource

from .reading import Make, layouts, read_all
from .test_model import drain
from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db

CREATE = (
    "create table t (id int not null, v text); alter table t replica identity full; "
    "insert into t values (1, 'a'), (1, 'a'), (2, 'b')"
)
ADDED = (
    "begin; delete from t where ctid = (select min(ctid) from t where id = 1); "
    "alter table t add primary key (id); insert into t values (9, 'new'); commit"
)
MOVED = (
    "delete from t where ctid = (select min(ctid) from t where id = 1)",
    "alter table t add primary key (id)",
    "update t set v = 'A' where id = 1; insert into t values (3, 'c')",
    "alter table t drop constraint t_pkey",
    "insert into t values (3, 'd'), (3, 'e'); update t set v = 'C' where v = 'c'",
    "delete from t where v = 'd'; update t set id = 4 where v = 'e'",
    "alter table t alter v set not null, add primary key (v)",
    "update t set id = 3; delete from t where v = 'C'",
    "insert into t values (3, 'x'), (3, 'y'); update t set v = 'z' where v = 'y'",
)


def task_of(folder: Path, url: str, target: str) -> Task:
    copies = url + ("&" if "?" in url else "?") + "schema=copies"
    more = f"target: '{copies}'\n" if target == "postgresql" else ""
    path = folder / "keys.yaml"
    path.write_text(f"name: keys\nsource: {{url: '{url}', tables: [public.t]}}\n{more}freshness: 100ms\n")
    return load(path)


def differs(task: Task, db: psycopg.Connection) -> tuple[Counter[object], Counter[object]]:
    """The rows that the source alone has, and those that the target alone has."""
    source = Counter(db.execute("select id::text, v from t").fetchall())
    if task.target.database:
        target = Counter(db.execute("select id::text, v from copies.t").fetchall())
    else:
        rows = DeltaTable(task.target_path("public.t")).to_pyarrow_table().to_pylist()
        target = Counter((str(r["id"]), r["v"]) for r in rows)
    return source - target, target - source


def key(task: Task) -> list[str]:
    return log.history(task.relations_path)["public.t"][-1].relation.key


SAME = (Counter(), Counter())


def test_key_added_in_the_transaction_of_a_delete_keeps_rows(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    task = task_of(tmp_path, database, "delta")
    db.execute(CREATE)
    drain(task, None)
    db.execute(ADDED)
    drain(task, None)
    assert differs(task, db) == SAME
    db.execute("update t set v = 'later' where id = 1; delete from t where id = 9")
    drain(task, None)
    assert differs(task, db) == SAME
    assert key(task) == ["id"]


@pytest.mark.parametrize(
    ("target", "stopped"),
    [("delta", 1), ("postgresql", 3), ("delta", len(MOVED))],
    ids=["each, delta", "some, postgresql", "all, delta"],
)
def test_key_moved_while_capture_was_stopped_keeps_rows(
    tmp_path: Path, database: str, db: psycopg.Connection, target: str, stopped: int
) -> None:
    task = task_of(tmp_path, database, target)
    db.execute(CREATE)
    drain(task, None)
    for n, statement in enumerate(MOVED, 1):
        db.execute(statement)
        if n % stopped == 0:
            drain(task, None)
            assert differs(task, db) == SAME, statement
    for n in range(
        5, 10
    ):  # a busy server writes log records of its own, which leave the key of one drain unproved
        db.execute(f"insert into t values ({n}, 'end {n}')")
        drain(task, None)
        assert differs(task, db) == SAME
        if key(task):
            break
    assert key(task) == ["v"]


@pytest.mark.slow
def test_key_moved_while_capture_runs_keeps_rows_and_is_proved(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """The stream announces a layout once; its key is proved by a later look at the catalog."""
    task = task_of(tmp_path, database, "delta")
    db.execute(CREATE)
    drain(task, None)
    stop = threading.Event()
    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        time.sleep(2)
        db.execute(ADDED)
        for statement in MOVED[2:]:
            db.execute(statement)
        for n in range(40):
            db.execute("insert into t values (%s, %s)", (n, f"n{n}"))
            time.sleep(0.1)
        wait_for(lambda: key(task) == ["v"], 20)
    drain(task, None)
    assert differs(task, db) == SAME


def test_deferrable_key_exchanged_by_rows_keeps_them(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Two rows have one value between the statements of a transaction: it tells no rows apart."""
    task = task_of(tmp_path, database, "delta")
    db.execute(
        "create table t (id int primary key deferrable, v text); alter table t replica identity full; "
        "insert into t values (1, 'a'), (2, 'b'), (3, 'c')"
    )
    drain(task, None)
    db.execute("update t set id = id + 1")
    drain(task, None)
    assert differs(task, db) == SAME


PARTIAL = "create table t (id int, v text, g int generated always as (length(v)) stored, primary key (id, g))"
UNSENT = "create publication tailrace_keys for table t with (publish_via_partition_root)"


def test_key_with_an_unpublished_column_is_refused_and_no_row_replaces_another(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """PostgreSQL 18 sends stored generated columns if the publication says so, earlier ones never do."""
    task = task_of(tmp_path, database, "delta")
    db.execute(f"{PARTIAL}; insert into t values (1, 'a'), (1, 'bb')")
    db.execute(UNSENT)
    with pytest.raises(
        SourceError, match=r"its key is not published completely \(g is not sent\)"
    ) as refused:
        Capture(task, once=True).run()
    assert PostgresSource(database, "keys").relation("public.t").key == []
    db.execute((refused.value.hint or "").split(": all")[0].split(";")[0])
    drain(task, None)
    db.execute("insert into t values (2, 'a'), (2, 'bb'); update t set v = 'cc' where id = 2 and g = 2")
    drain(task, None)
    assert differs(task, db) == SAME


def test_key_that_gets_an_unpublished_column_is_no_key_from_then_on(
    db: psycopg.Connection, make: Make
) -> None:
    db.execute("create table t (id int primary key, v text)")
    db.execute(UNSENT.replace("tailrace_keys", "tailrace_test"))
    source = make()
    source.prepare(["public.t"])
    first = source.relation("public.t")
    source.start(None, [first])
    db.execute("insert into t values (1, 'a')")
    db.execute(
        "alter table t add g int generated always as (length(v)) stored, drop constraint t_pkey, add primary key (id, g)"
    )
    db.execute("insert into t values (1, 'bb')")
    assert [one.key for one in layouts(read_all(source), first)] == [[]]


def test_key_with_a_column_that_came_later_counts_as_it_was(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table t (id int primary key, v text)")
    source = make()
    source.prepare(["public.t"])
    db.execute("insert into t values (1, 'a')")
    db.execute("alter table t add z int not null default 1, drop constraint t_pkey, add primary key (id, z)")
    source.start(None, [])
    assert [one.key for one in layouts(read_all(source))] == [["id"]]


@pytest.mark.since(15)
def test_key_that_a_column_list_leaves_out_is_refused(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        "create table t (id int primary key, v text); create publication tailrace_test for table t (v)"
    )
    found = [one.what for one in make().check(["public.t"], None) if one.level == "error"]
    assert any("its key is not published completely (id is not sent)" in one for one in found)
