"""Partitions that come with rows, or go with them: the stream of their root has neither."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.partition_notes import UNSURE
from tailrace.capture.process import Capture
from tailrace.lake import delta as lake
from tailrace.operate.checks import before_run, check
from tailrace.runtime.setup import validate_task
from tailrace.sources.base import Partitions
from tailrace.state import commands
from tailrace.state.baselines import read_baselines

from .reading import Make
from .test_control import Shop, task_file
from .test_model import drain
from .test_publication import capturing
from .test_running import wait_for

pytestmark = pytest.mark.db

ROOT = (
    "create table p (id int primary key, v text default 'x') partition by range (id);"
    " create table p1 partition of p for values from (0) to (10); insert into p values (1)"
)
SIDE = "create table side (like p including all)"
ATTACH = "alter table p attach partition side for values from (10) to (20)"
IN_ONE = "begin; {}; commit"


UNLOGGED = "create unlogged table side partition of p for values from (10) to (20)"


@pytest.mark.parametrize(
    ("before", "since"),
    [
        ([UNLOGGED, "insert into p values (11)"], ["alter table side set logged"]),
        (
            ["alter table p1 set unlogged", "insert into p values (2)"],
            ["alter table p1 set logged", "insert into p values (3)"],
        ),
    ],
    ids=["made so", "altered"],
)
def test_what_a_partition_got_while_it_was_unlogged_was_never_sent(
    db: psycopg.Connection, make: Make, before: list[str], since: list[str]
) -> None:
    db.execute(ROOT)
    source, tables = make(), ["public.p"]

    def look() -> Partitions:
        return source.partitions(tables, {"public.p": known})["public.p"]

    known: Collection[str] = source.partitions(tables, {})["public.p"].there
    for statement in before:
        db.execute(statement)
    name = since[0].split()[2]
    (said,) = source.check(tables, None)
    assert f"public.{name} is an unlogged partition of public.p" in said.what
    assert said.cure == f"ALTER TABLE public.{name} SET LOGGED"
    found = look()
    assert (found.filled, found.unsure) == ([], [])
    known = found.there
    assert look().filled == []
    for statement in since:
        db.execute(statement)
    found = look()
    assert found.filled == [f"public.{name}"]
    known = found.there
    assert look().filled == [] and source.check(tables, None) == []


def test_a_partition_that_came_with_rows_is_not_filled_again_when_it_becomes_unlogged(
    db: psycopg.Connection, make: Make
) -> None:
    db.execute(ROOT)
    for statement in (SIDE, "insert into side values (11)", ATTACH):
        db.execute(statement)
    source, tables = make(), ["public.p"]
    known = source.partitions(tables, {})["public.p"].there
    db.execute("alter table side set unlogged")
    assert source.partitions(tables, {"public.p": known})["public.p"].filled == []


@pytest.mark.parametrize(
    ("statements", "filled"),
    [
        pytest.param([SIDE, "insert into side values (11)", ATTACH], ["public.side"], id="rows"),
        pytest.param(
            [IN_ONE.format(f"{SIDE}; insert into side values (11); {ATTACH}; insert into p values (12)")],
            ["public.side"],
            id="rows, in one transaction",
        ),
        pytest.param(
            [SIDE, IN_ONE.format(f"insert into side values (11); {ATTACH}")], ["public.side"], id="rows, then"
        ),
        pytest.param(
            [
                "create table side (like p including all) partition by range (id)",
                "create table leaf partition of side for values from (10) to (15)",
                "insert into side values (11)",
                ATTACH,
            ],
            ["public.side"],
            id="rows of a tree",
        ),
        pytest.param(
            [
                "alter table p detach partition p1",
                "alter table p attach partition p1 for values from (0) to (9)",
            ],
            ["public.p1"],
            id="again",
        ),
        pytest.param([SIDE, ATTACH, "insert into p values (11)"], [], id="empty"),
        pytest.param([IN_ONE.format(f"{SIDE}; {ATTACH}; insert into p values (11)")], [], id="empty, in one"),
        pytest.param(
            ["create table q partition of p for values from (10) to (20)", "insert into p values (11), (12)"],
            [],
            id="made",
        ),
        pytest.param(
            [
                IN_ONE.format(
                    "create table q partition of p for values from (10) to (20); insert into p values (11)"
                ),
                "begin; select from p where id = 11 for update; rollback",
                "alter table q alter id set statistics 9, alter v set statistics 9",
            ],
            [],
            id="made, and filled in one",
        ),
        pytest.param(
            [
                "create table q partition of p for values from (10) to (20) partition by range (id)",
                "create table leaf partition of q for values from (10) to (15)",
                "insert into p values (11)",
            ],
            [],
            id="made tree",
        ),
    ],
)
def test_partitions_that_came_with_rows(
    db: psycopg.Connection, make: Make, statements: list[str], filled: list[str]
) -> None:
    db.execute(ROOT)
    db.execute("create table plain (id int primary key)")
    source = make()
    first = source.partitions(["public.p", "public.plain"], {})
    assert [(t, list(one.there.values()), one.filled) for t, one in first.items()] == [
        ("public.p", ["public.p1"], [])
    ]
    for statement in statements:
        db.execute(statement.encode())
    known = {"public.p": first["public.p"].there}
    now = source.partitions(["public.p"], known)["public.p"]
    assert (now.filled, now.unsure) == (filled, [])
    assert set(filled) <= set(now.there.values())
    settled = source.partitions(["public.p"], {"public.p": now.there})["public.p"]
    assert (settled.there, settled.filled) == (now.there, [])


def test_rows_of_a_transaction_that_began_before_the_partition_was_made(
    database: str, db: psycopg.Connection, make: Make
) -> None:
    db.execute(ROOT)
    source = make()
    known = {"public.p": source.partitions(["public.p"], {})["public.p"].there}
    with psycopg.connect(database) as long:
        long.execute("create table other (id int)")  # it has an id from now on
        db.execute("create table q partition of p for values from (10) to (20)")
        long.execute("insert into p values (11)")
    assert source.partitions(["public.p"], known)["public.p"].filled == []


def test_one_whose_rows_may_not_be_read_is_named(database: str, db: psycopg.Connection, make: Make) -> None:
    db.execute(ROOT)
    known = {"public.p": make().partitions(["public.p"], {})["public.p"].there}
    db.execute(f"{SIDE}; insert into side values (11); {ATTACH}".encode())
    db.execute(
        "drop role if exists tailrace_blind; create role tailrace_blind login; grant select on p to tailrace_blind"
    )
    source = type(make())(database.replace("postgres@", "tailrace_blind@"), "test")
    try:
        now = source.partitions(["public.p"], known)["public.p"]
        assert (now.filled, now.unsure) == ([], ["public.side"])
    finally:
        source.close()
        db.execute("drop owned by tailrace_blind; drop role tailrace_blind")


def test_one_that_is_locked_is_looked_at_later(database: str, db: psycopg.Connection, make: Make) -> None:
    db.execute(ROOT)
    source = make()
    known = {"public.p": source.partitions(["public.p"], {})["public.p"].there}
    db.execute(f"{SIDE}; insert into side values (11)".encode())
    db.execute(ATTACH)
    with psycopg.connect(database) as other:
        other.execute("lock table side in access exclusive mode")
        now = source.partitions(["public.p"], known)["public.p"]
        assert (list(now.there.values()), now.filled, now.unsure) == (["public.p1"], [], [])
    assert source.partitions(["public.p"], known)["public.p"].filled == ["public.side"]


def test_a_published_table_that_is_attached_is_published_under_its_roots_name(
    db: psycopg.Connection, make: Make
) -> None:
    db.execute(ROOT)
    db.execute(SIDE)
    source, both = make(), ["public.p", "public.side"]
    source.prepare(["public.side"])
    db.execute(ATTACH)
    assert source.attached(both) == {}  # its root is not in the stream: it is, as itself
    source.prepare(both)
    assert source.attached(both) == {"public.side": "public.p"}
    db.execute("alter table p detach partition side")
    assert source.attached(both) == {}


def shop_of(folder: Path, url: str, db: psycopg.Connection, more: str = "") -> Shop:
    db.execute("create schema s; create table s.p (id int primary key, v int) partition by range (id)")
    db.execute("create table s.p1 partition of s.p for values from (0) to (10); insert into s.p values (1)")
    shop = Shop(task_file(folder, url, tables="s.p", more=more), db)
    drain(shop.task, None)
    return shop


def attach(db: psycopg.Connection, name: str, begin: int, rows: str = "") -> None:
    db.execute(f"create table s.{name} (like s.p including all)".encode())
    if rows:
        db.execute(f"insert into s.{name} values {rows}".encode())
    db.execute(
        f"alter table s.p attach partition s.{name} for values from ({begin}) to ({begin + 10})".encode()
    )


LOST = "it got partitions with rows that were never sent (s.side): a new baseline has them"


@pytest.mark.slow
def test_rows_of_one_that_was_attached_while_nobody_captured(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db)
    attach(db, "empty", 10)
    attach(db, "side", 20, "(21), (22)")
    db.execute("insert into s.p values (11), (23)")
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    assert [(one.where, one.cure) for one in found if one.what == LOST] == [
        ("s.p", "`tailrace resync TASK s.p` takes a new baseline of it")
    ]
    drain(shop.task, None)
    assert shop.state("s.p") == ("suspended", LOST)
    commands.resync(shop.task.commands_path, "s.p", "asked for")
    for _ in range(2):  # once settled, it is settled
        drain(shop.task, None)
        assert shop.equal("s.p") and shop.state("s.p") == ("stopped", None)


@pytest.mark.slow
def test_a_table_with_such_a_partition_may_be_resumed_as_it_is(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Somebody knows better, or does not need its rows: the stream has all that came since."""
    shop = shop_of(tmp_path, database, db)
    attach(db, "side", 20, "(21)")
    drain(shop.task, None)
    assert shop.state("s.p") == ("suspended", LOST)
    commands.give(shop.task.commands_path, commands.RESUME, ["s.p"], why="", who="root")
    for row in (22, 23):
        db.execute("insert into s.p values (%s)", (row,))
        drain(shop.task, None)
        assert shop.state("s.p") == ("stopped", None)
    found = lake.read(shop.task.target_path("s.p"))["id"].to_pylist()
    assert 21 not in found and {22, 23} < {*found}


@pytest.mark.slow
def test_a_table_that_was_suspended_for_something_else_is_so_for_a_partition_when_it_is_resumed(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db)
    commands.suspend(shop.task.commands_path, "s.p", "a conflict")
    attach(db, "side", 20, "(21)")
    drain(shop.task, None)
    assert shop.state("s.p") == ("suspended", "a conflict")
    commands.give(shop.task.commands_path, commands.RESUME, ["s.p"], why="", who="root")
    drain(shop.task, None)
    assert shop.state("s.p") == ("suspended", LOST)


def test_a_group_with_automatic_baselines_reads_them(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db, "groups: {all: {tables: [s.*], automatic_baseline: true}}\n")
    attach(db, "side", 20, "(21)")
    drain(shop.task, None)
    assert shop.equal("s.p") and shop.state("s.p") == ("stopped", None)


@pytest.mark.slow
def test_it_is_noticed_while_capture_runs(
    tmp_path: Path, database: str, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    shop = shop_of(tmp_path, database, db)
    with capturing(shop):
        attach(db, "empty", 10)
        db.execute(
            "create table s.q partition of s.p for values from (30) to (40); insert into s.p values (31), (11)"
        )
        db.execute("drop table s.p1")
        wait_for(lambda: "partitions were detached or dropped (s.p1)" in caplog.text, 20)
        assert shop.state("s.p")[1] is None
        attach(db, "side", 20, "(21)")
        wait_for(lambda: shop.state("s.p") == ("suspended", LOST), 20)
    assert caplog.text.count("detached or dropped") == caplog.text.count("never sent") == 1


@pytest.mark.slow
def test_what_may_not_be_read_is_a_warning_until_there_is_a_new_baseline(
    tmp_path: Path,
    database: str,
    db: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = shop_of(tmp_path, database, db)
    attach(db, "side", 20, "(21)")
    monkeypatch.setattr("tailrace.sources.postgresql.partitions._has_older_rows", lambda *_: None)
    said = UNSURE.format("s.side")
    time.sleep(1)
    for _ in range(2):
        drain(shop.task, None)
        found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
        assert [one.where for one in found if one.what == said] == ["s.p"]
    assert caplog.text.count(said) == 1
    time.sleep(1)
    commands.resync(shop.task.commands_path, "s.p", "asked for")
    drain(shop.task, None)
    assert not [one for one in check(shop.task, lambda: None) if one.what == said]  # type: ignore[arg-type, return-value]


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["s.*", "s.p, s.q"])
def test_a_captured_table_that_is_attached_is_suspended(
    tmp_path: Path, database: str, db: psycopg.Connection, tables: str
) -> None:
    db.execute("create schema s; create table s.p (id int primary key, v int) partition by range (id)")
    db.execute("create table s.q (like s.p including all)")
    shop = Shop(task_file(tmp_path, database, tables=tables), db)
    Capture(shop.task, once=True).run()
    db.execute(
        "alter table s.p attach partition s.q for values from (10) to (20); insert into s.q values (11)"
    )
    before_run(shop.task, lambda: pytest.fail("no session is needed"))  # the other tables go on
    found = check(shop.task, lambda: pytest.fail("no session is needed"))
    (said,) = [one for one in found if one.where == "s.q"]
    assert (said.level, "attached as a partition to s.p" in said.what) == ("warning", True)
    Capture(shop.task, once=True).run()
    assert shop.state("s.q")[0] == "suspended"
    assert "attached as a partition to s.p" in str(shop.state("s.q")[1])
    assert shop.state("s.p")[0] != "suspended"
    db.execute("alter table s.p detach partition s.q")
    commands.resync(shop.task.commands_path, "s.q", "it is detached")
    Capture(shop.task, once=True).run()
    assert shop.state("s.q")[0] != "suspended"
    taken = read_baselines(shop.task.control_path("baselines"))["s.q"]
    assert (taken.number, taken.rows) == (2, 1)


FOREIGN = (
    "create foreign data wrapper w; create server there foreign data wrapper w;"
    " create foreign table s.far partition of s.p for values from (50) to (60) server there"
)
LEFT_OUT = (
    "foreign tables are partitions of it (s.far), and their rows are neither in the baseline nor in changes"
)


def test_a_foreign_partition_is_left_out_and_named(
    tmp_path: Path, database: str, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Attached after the first baseline, and there at the second one."""
    db.execute("create schema s; create table s.p (id int, v int) partition by range (id)")
    db.execute("create table s.p1 partition of s.p for values from (0) to (10); insert into s.p values (1)")
    db.execute("alter table s.p replica identity full; alter table s.p1 replica identity full")
    shop = Shop(task_file(tmp_path, database, tables="s.p"), db)
    shop.path.write_text(shop.path.read_text().replace("keep: 0s", "keep: 1d"))
    drain(shop.task, None)
    for statement in FOREIGN.split(";"):
        db.execute(statement.encode())
    found = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    assert [one.what for one in found if "foreign" in one.what] == [LEFT_OUT]
    drain(shop.task, None)
    assert validate_task(shop.path, shop.task, (), timeout_s=60, samples=3).equal
    db.execute("insert into s.p1 values (2)")
    drain(shop.task, None)
    db.execute("insert into s.p1 values (3)")
    commands.resync(shop.task.commands_path, "s.p", "asked for")
    drain(shop.task, None)
    rows = lake.read(shop.task.target_path("s.p"))["id"].to_pylist()
    assert (sorted(rows), shop.state("s.p")) == ([1, 2, 3], ("stopped", None))
    assert caplog.text.count(LEFT_OUT) >= 1
