"""Warnings that only a log had: they stay in `status` and `check` until what they say is over."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace.capture import constraints
from tailrace.capture.process import Capture
from tailrace.cli import screen
from tailrace.config.task import load
from tailrace.operate.checks import check
from tailrace.operate.status import status
from tailrace.state import orders

from .test_control import Shop, task_file
from .test_model import drain
from .test_partitions import FOREIGN, LEFT_OUT

pytestmark = pytest.mark.db
DETACHED = "partitions were detached or dropped (s.p1), and their rows stay in the target"
RETYPED = "column v changed from integer to bigint: older rows have other values in the source if the statement had a"


def told(shop: Shop, what: str) -> tuple[bool, bool]:
    """Whether `status` (and its screen) and `check` say it."""
    said = status(shop.task)
    (mine,) = [t for t in said.tables if t.table == "s.p"]
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    shown = any(what in line for line in screen.reasons(said))
    assert shown == any(what in one for one in mine.warnings)
    assert sum(what in one.what for one in found) <= 1
    return shown, any(what in one.what for one in found)


def shop_of(folder: Path, url: str, db: psycopg.Connection) -> Shop:
    db.execute("create schema s; create table s.p (id int, v int) partition by range (id)")
    for n in (0, 1):
        db.execute(
            f"create table s.p{n} partition of s.p for values from ({n}0) to ({n + 1}0);"
            f" alter table s.p{n} replica identity full"
        )
    db.execute("alter table s.p replica identity full; insert into s.p values (1), (11)")
    shop = Shop(task_file(folder, url, tables="s.p"), db)
    drain(shop.task, None)
    return shop


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("alter table s.p detach partition s.p1", DETACHED),
        ("alter table s.p alter v type bigint", RETYPED),
    ],
    ids=["rows that stay", "perhaps other values"],
)
def test_warning_about_rows_stays_until_the_table_has_a_new_baseline(
    tmp_path: Path, database: str, db: psycopg.Connection, statement: str, what: str
) -> None:
    shop = shop_of(tmp_path, database, db)
    db.execute(statement.encode())
    db.execute("insert into s.p values (2)")
    for _ in range(2):
        drain(shop.task, None)
        assert told(shop, what) == (True, True)
    orders.resync(shop.task.orders_path, "s.p", "asked for")
    drain(shop.task, None)
    assert told(shop, what) == (False, False)


def test_warning_of_a_foreign_partition_goes_with_it(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db)
    for statement in FOREIGN.split(";"):
        db.execute(statement.encode())
    drain(shop.task, None)
    assert told(shop, LEFT_OUT) == (True, True)
    db.execute("drop foreign table s.far")
    drain(shop.task, None)
    assert told(shop, LEFT_OUT) == (False, False)


def test_constraint_that_a_target_refuses_stays_until_it_has_it(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = "column v: its rows in the target have NULLs, so it gets no NOT NULL"
    path = tmp_path / "shop.yaml"
    db.execute("create schema s; create table s.p (id int primary key, v int)")
    db.execute("insert into s.p values (1, null)")
    path.write_text(
        f"name: shop\nsource: {{url: '{database}', tables: [s.p]}}\n"
        f"target: {{database: '{database}&schema=lake', not_null: true}}\n"
    )
    shop = Shop(path, db)
    drain(shop.task, None)
    db.execute("delete from s.p; alter table s.p alter v set not null")
    monkeypatch.setattr(constraints, "AGAIN_S", 0.0)
    Capture(shop.task, once=True).run()  # the delete is not applied yet
    assert told(shop, what) == (True, True)
    drain(shop.task, None)
    Capture(shop.task, once=True).run()
    assert told(shop, what) == (False, False)


def test_progress_that_notes_no_numbers_of_targets_stays_until_it_does(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    what, role = (
        '"tailrace"."tailrace_progress" does not note the targets\' numbers yet',
        f"r_{db.info.dbname}",
    )
    db.execute(f"create role {role} login; grant create on database {db.info.dbname} to {role}".encode())
    db.execute("create schema s; create table s.p (id int primary key)")
    target = f"{database.replace('postgres@', f'{role}@')}&schema=lake"
    path = tmp_path / "shop.yaml"
    path.write_text(f"name: shop\nsource: {{url: '{database}', tables: [s.p]}}\ntarget: '{target}'\n")
    task = load(path)

    def said() -> tuple[int, int]:
        drain(task, None)
        found = check(task, lambda: None)  # type: ignore[arg-type, return-value]
        return (
            sum(one.startswith(what) for one in status(task).warnings),
            sum(one.what.startswith(what) for one in found),
        )

    try:
        assert said() == (0, 0)
        db.execute(
            "alter table tailrace.tailrace_progress drop relid;"
            "alter table tailrace.tailrace_progress owner to postgres;"
            f"grant select, insert, update, delete on tailrace.tailrace_progress to {role}".encode()
        )
        assert said() == (1, 1)
        db.execute("alter table tailrace.tailrace_progress add relid oid")
        assert said() == (0, 0)
    finally:
        db.execute(f"drop owned by {role} cascade; drop role {role}".encode())
