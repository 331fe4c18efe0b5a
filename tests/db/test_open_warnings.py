"""Warnings that only a log had: they stay in `status` and `check` until what they say is over."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace.cli import screen
from tailrace.operate.checks import check
from tailrace.operate.status import status
from tailrace.state import commands

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


def test_warnings_about_rows_stay_until_the_table_has_a_new_baseline(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Of rows that stay in the target, and of rows that perhaps have other values."""
    shop = shop_of(tmp_path, database, db)
    db.execute("alter table s.p detach partition s.p1")
    db.execute("alter table s.p alter v type bigint")
    db.execute("insert into s.p values (2)")
    for _ in range(2):
        drain(shop.task, None)
        assert [told(shop, what) for what in (DETACHED, RETYPED)] == [(True, True)] * 2
    commands.resync(shop.task.commands_path, "s.p", "asked for")
    drain(shop.task, None)
    assert [told(shop, what) for what in (DETACHED, RETYPED)] == [(False, False)] * 2


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
