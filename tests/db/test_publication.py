"""A publication that somebody alters, and alters back: the server never sends what was changed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.capture.stream import MISSING, RECREATED
from tailrace.errors import SourceError
from tailrace.operate.checks import check
from tailrace.runtime.setup import validate_task
from tailrace.sources.postgresql.slot import published, withdraw
from tailrace.state import commands
from tailrace.state.baselines import read_baselines

from .test_control import Shop, task_file
from .test_model import drain, target_rows
from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db

ALL = "set (publish = 'insert, update, delete, truncate')"
NAME = "publication tailrace_shop"
MADE = (
    f"create {NAME} for table only s.a, only s.b with "
    "(publish_via_partition_root = true, publish_generated_columns = stored)"
)
ONLY = f"alter {NAME} set table only s.a, only s.b"
ALTERED = "the publication was altered, and changes may be missing: a new baseline has them"


def shop_of(folder: Path, url: str, db: psycopg.Connection, more: str = "") -> Shop:
    for table in ("a", "b"):
        db.execute(f"create table if not exists s.{table} (id int primary key, v int, w int)")
        db.execute(f"insert into s.{table} values (1, 1, 1), (2, 2, 2)")
    shop = Shop(task_file(folder, url, tables="s.a, s.b", more=more), db)
    drain(shop.task, None)
    return shop


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "back", "lost"),
    [
        pytest.param(
            f"alter {NAME} set (publish = 'insert')", f"alter {NAME} {ALL}", ["s.a", "s.b"], id="kinds"
        ),
        pytest.param(
            f"alter {NAME} set table only s.a (id), only s.b",
            ONLY,
            ["s.a"],
            id="columns",
        ),
        pytest.param(
            f"alter {NAME} drop table only s.a", f"alter {NAME} add table only s.a", ["s.a"], id="table"
        ),
        pytest.param(f"drop {NAME}", MADE, ["s.a", "s.b"], id="made again"),
    ],
)
def test_tables_wait_for_a_new_baseline_when_it_was_altered_and_altered_back(
    tmp_path: Path, database: str, db: psycopg.Connection, there: str, back: str, lost: list[str]
) -> None:
    db.execute("create schema s")
    shop = shop_of(tmp_path, database, db)
    db.execute(there.encode())
    db.execute("update s.a set v = 9, w = 9 where id = 1; update s.b set v = 9 where id = 1")
    db.execute(back.encode())
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    assert [one.where for one in found if one.what == ALTERED] == lost
    drain(shop.task, None)
    assert [t for t in ("s.a", "s.b") if shop.state(t) == ("suspended", ALTERED)] == lost
    for table in lost:
        commands.give(shop.task.commands_path, commands.RESYNC, [table], why="altered", who="me")
    for _ in range(2):  # once settled, it is settled
        drain(shop.task, None)
        assert shop.equal("s.a") and shop.equal("s.b")
        assert shop.state("s.a")[0] == shop.state("s.b")[0] == "stopped"


def test_a_table_that_left_it_is_named_and_suspended_where_recreated_ones_end_the_task(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s")
    shop = shop_of(tmp_path, database, db, "tables: {s.a: {ddl: {recreate_table: stop}}}\n")
    db.execute(f"alter {NAME} drop table only s.a".encode())
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    assert [(one.where, one.level) for one in found if one.what == MISSING] == [("s.a", "warning")]
    drain(shop.task, None)
    assert shop.state("s.a") == ("suspended", MISSING) and shop.state("s.b") == ("stopped", None)
    commands.give(shop.task.commands_path, commands.RESYNC, ["s.a"], why="", who="me")
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    assert [one for one in found if one.what == MISSING] == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["apply", "stop"])
def test_a_policy_for_recreated_tables_counts_there_too(
    tmp_path: Path, database: str, db: psycopg.Connection, policy: str
) -> None:
    db.execute("create schema s")
    said = f"tables: {{s.a: {{ddl: {{recreate_table: {policy}}}}}}}\n"
    shop = shop_of(tmp_path, database, db, said)
    db.execute(f"alter {NAME} drop table only s.a".encode())
    db.execute("update s.a set v = 9 where id = 1")
    db.execute(f"alter {NAME} add table only s.a".encode())
    drain(shop.task, None)
    assert shop.equal("s.a") == (policy == "apply")
    assert shop.state("s.a") == (("stopped", None) if policy == "apply" else ("suspended", ALTERED))


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    ["for all tables", pytest.param("for tables in schema s", marks=pytest.mark.since(15))],
)
def test_a_table_that_is_made_again_in_one_that_is_for_all_or_for_a_schema(
    tmp_path: Path, database: str, db: psycopg.Connection, made: str
) -> None:
    """It is published at once: no row of the catalog says by which the publication has it."""
    db.execute("create schema s")
    db.execute(f"create {NAME} {made} with (publish_via_partition_root = true)".encode())
    shop = shop_of(tmp_path, database, db)
    drain(shop.task, None)
    assert shop.state("s.a") == shop.state("s.b") == ("stopped", None)
    db.execute("drop table s.a; create table s.a (id int primary key, v int, w int)")
    db.execute("insert into s.a values (3, 3, 3); update s.b set v = 9")
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    assert [(one.where, one.level) for one in found if one.what == RECREATED] == [("s.a", "warning")]
    drain(shop.task, None)
    assert shop.state("s.a") == ("suspended", RECREATED) and shop.state("s.b") == ("stopped", None)
    commands.give(shop.task.commands_path, commands.RESYNC, ["s.a"], why="made again", who="me")
    for _ in range(2):
        drain(shop.task, None)
        assert shop.equal("s.a") and shop.equal("s.b")
        assert shop.state("s.a") == ("stopped", None)


@contextmanager
def capturing(shop: Shop) -> Iterator[list[Exception]]:
    """Capture runs, and its slot is in use; gives what it ends with."""
    stop, failed = threading.Event(), list[Exception]()

    def run() -> None:
        try:
            Capture(shop.task, stop=stop).run()
        except SourceError as error:
            failed.append(error)

    with meanwhile(run, stop=stop):
        active = "select active from pg_replication_slots"
        wait_for(lambda: shop.db.execute(active).fetchone() == (True,), 20)
        yield failed


def test_it_is_noticed_while_capture_runs(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    db.execute("create schema s")
    shop = shop_of(tmp_path, database, db)
    with capturing(shop) as failed:
        db.execute(f"alter {NAME} drop table only s.a".encode())
        db.execute(f"alter {NAME} add table only s.a".encode())
        wait_for(lambda: shop.state("s.a") == ("suspended", ALTERED), 20)
        assert not failed
        db.execute(f"alter {NAME} set (publish = 'insert')".encode())
        wait_for(lambda: bool(failed), 20)
    assert str(failed[0]).splitlines() == [
        "the publication leaves out kinds of changes: targets would differ from the source",
        "  where: publication tailrace_shop",
        f'  hint: ALTER PUBLICATION "tailrace_shop" {ALL.replace("set", "SET")}',
    ]


def test_one_that_is_dropped_while_capture_runs_is_not_made_again(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """An order publishes tables, and would hide that it was gone."""
    db.execute("create schema s")
    shop = shop_of(tmp_path, database, db)
    with capturing(shop) as failed:
        db.execute(f"drop {NAME}".encode())
        commands.resync(shop.task.commands_path, "s.a", "asked for")
        wait_for(lambda: bool(failed), 20)
    assert "the publication is gone" in str(failed[0]) and "--new-stream" in str(failed[0])
    assert published(db, "tailrace_shop") is None


@pytest.mark.slow
def test_a_table_that_the_task_file_leaves_out_leaves_it_and_comes_back_with_a_new_baseline(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s")
    shop = shop_of(tmp_path, database, db)
    whole = shop.path.read_text()
    shop.path.write_text(whole.replace("tables: [s.a, s.b]", "tables: [s.*], exclude: [s.b]"))
    db.execute("insert into s.b values (3, 3, 3)")
    drain(shop.task, None)
    assert published(db, "tailrace_shop") == {"s.a"}
    assert shop.state("s.b") == ("removed", "the task file no longer selects it")
    assert [r["id"] for r in target_rows(shop.task, "s.b")] == [1, 2]
    db.execute("update s.b set v = 9 where id = 1; insert into s.a values (3, 3, 3)")
    shop.path.write_text(whole)
    drain(shop.task, None)
    assert published(db, "tailrace_shop") == {"s.a", "s.b"}
    assert shop.state("s.b") == ("stopped", None) and shop.equal("s.a") and shop.equal("s.b")
    db.execute("delete from s.b where id = 2")
    drain(shop.task, None)
    assert shop.equal("s.b")
    assert read_baselines(shop.task.control_path("baselines"))["s.b"].number == 2


@pytest.mark.parametrize(
    "made",
    [
        "for all tables",
        pytest.param("for tables in schema s, table s.a", marks=pytest.mark.since(15)),
    ],
)
def test_tables_stay_in_one_that_is_for_all_or_for_a_schema(db: psycopg.Connection, made: str) -> None:
    """Somebody made it so; to take a table out is an error there."""
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int primary key)"
    )
    db.execute(f"create {NAME} {made}".encode())
    withdraw(db, "tailrace_shop", ["s.b"])
    assert published(db, "tailrace_shop") == {"s.a", "s.b"}


def rows_of(shop: Shop, table: str) -> set[tuple[object, ...]]:
    return {tuple(r.values()) for r in target_rows(shop.task, table)}


@pytest.mark.since(15)
def test_rows_that_a_publication_filters_are_in_no_baseline_and_in_no_comparison(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute(
        "create schema s; create table s.b (id int primary key, v int, w int) partition by range (id);"
        " create table s.b1 partition of s.b for values from (0) to (9);"
        " create table s.a (id int primary key, v int, w int); alter table s.a replica identity full"
    )
    db.execute(
        f"create {NAME} for table only s.a where (v > 1), only s.b where (id > 1)"
        " with (publish_via_partition_root = true)"
    )
    shop = shop_of(tmp_path, database, db)
    assert rows_of(shop, "s.a") == rows_of(shop, "s.b") == {(2, 2, 2)}
    db.execute("insert into s.a values (3, 3, 3), (4, 0, 4); insert into s.b values (3, 3, 3), (0, 9, 9)")
    db.execute("update s.a set v = 0 where id = 2; update s.a set v = 5 where id = 1")
    drain(shop.task, None)
    kept = set(db.execute("select * from s.a where v > 1").fetchall())
    assert rows_of(shop, "s.a") == kept == {(1, 5, 1), (3, 3, 3)}
    assert rows_of(shop, "s.b") == {(2, 2, 2), (3, 3, 3)}
    assert validate_task(shop.path, shop.task, (), timeout_s=60, samples=3).equal
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    assert {one.where.split()[-1] for one in found if "sends only rows where" in one.what} == {"s.a", "s.b"}


@pytest.mark.slow
@pytest.mark.since(15)
def test_a_filter_that_changes_while_capture_runs_suspends_the_table_until_resync(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s")
    shop = shop_of(tmp_path, database, db)
    with capturing(shop):
        db.execute(f"alter {NAME} set table only s.a where (id > 1), only s.b".encode())
        wait_for(lambda: shop.state("s.a") == ("suspended", ALTERED), 20)
    commands.give(shop.task.commands_path, commands.RESYNC, ["s.a"], why="altered", who="me")
    drain(shop.task, None)
    assert (rows_of(shop, "s.a"), shop.state("s.a")) == ({(2, 2, 2)}, ("stopped", None))
