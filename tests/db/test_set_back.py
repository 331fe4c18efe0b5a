"""A server that was put back to a copy of its disk: refused where its log is another one, also when it has grown past
the task's position; what crashes leave is not mistaken for that."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import SourceError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.sources.postgresql.source import PostgresSource
from tailrace.state import commands
from tailrace.store.trimming import Bound, trim

from .conftest import SETTINGS, OwnServer

pytestmark = [pytest.mark.db, pytest.mark.slow]

COMPARED = "comparing what the source sends again with LOG"
TABLES = (
    "create schema s; create table s.a (id int primary key, v int); create table s.b (id int primary key, v int); "
    "insert into s.a values (1, 0); insert into s.b values (1, 0)"
)


@pytest.fixture
def server(own_server: OwnServer) -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, with two tables of a row each."""
    with own_server(settings=SETTINGS | {"fsync": "on"}) as made:
        do(made, TABLES)
        yield made


@pytest.fixture
def shop(server: EmbeddedPostgres, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Task:
    """A task for both tables, with its baseline."""
    return begun(tmp_path, server.tcp_url(), caplog)


def begun(folder: Path, url: str, caplog: pytest.LogCaptureFixture) -> Task:
    caplog.set_level(logging.INFO, "tailrace.capture")
    path = folder / "shop.yaml"
    path.write_text(
        f"name: shop\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: ['s.*']}}\n"
        "freshness: 50ms\ncapture: {idle_advance: 1s}\nbaseline: {workers: 1}\n"
    )
    task = load(path)
    capture(task)
    return task


def do(server: EmbeddedPostgres, sql: str) -> None:
    with psycopg.connect(server.tcp_url(), autocommit=True) as session:
        session.execute(sql)


def capture(task: Task) -> None:
    Capture(task, once=True).run()


def changes(task: Task) -> int:
    """The inserts, updates and deletes that LOG has."""
    kinds = lake.read(task.log_path, ["RECID"])["RECID"].to_pylist()
    return sum(kind in (log.INSERT, log.UPDATE, log.DELETE) for kind in kinds)


def copied(server: EmbeddedPostgres) -> Path:
    """A copy of the stopped server's disk."""
    server.stop()
    copy = server.folder.with_name("copy")
    subprocess.run(["cp", "-a", str(server.folder), str(copy)], check=True)
    server.start()
    return copy


def put_back(server: EmbeddedPostgres, copy: Path) -> None:
    server.stop()
    shutil.rmtree(server.folder)
    copy.rename(server.folder)
    server.start()


def grow(server: EmbeddedPostgres, task: Task) -> None:
    """Other changes, until the log has passed the task's position."""
    position = log.state(task.log_path).position
    assert position is not None
    with psycopg.connect(server.tcp_url(), autocommit=True) as session:
        for _ in range(20):
            session.execute("update s.b set v = v - 1")
        session.execute("select pg_switch_wal()")
        session.execute("update s.b set v = v - 1")
        row = session.execute("select pg_current_wal_flush_lsn() - '0/0'").fetchone()
    assert row and row[0] > int.from_bytes(position[:8], "big")


def refused(task: Task) -> SourceError:
    with pytest.raises(SourceError) as caught:
        capture(task)
    return caught.value


@pytest.mark.parametrize(
    ("table", "trimmed"), [("s.a", False), ("s.b", True)], ids=["whole log", "trimmed log"]
)
def test_a_server_that_was_put_back_is_refused_and_stays_refused(
    server: EmbeddedPostgres, shop: Task, table: str, trimmed: bool
) -> None:
    """Whether the task saw changes of the same table before or not, and whatever retention left."""
    copy = copied(server)
    for _ in range(3):
        do(server, f"update {table} set v = v + 1")
        capture(shop)
    put_back(server, copy)
    error = refused(shop)
    assert "restored from a backup" in error.what  # its log ends before the task's position
    if trimmed:
        newest = log.state(shop.log_path).number
        assert trim(shop.log_path, "CHANGE_SEQ", Bound(newest - 1)).files
    grow(server, shop)
    for _ in range(2):
        error = refused(shop)
        assert error.what.startswith("transaction ") and "was restored from a backup" in error.what
        assert "start a new task" in (error.hint or "") and "slot tailrace_shop" in (error.where or "")
    assert changes(shop) == (1 if trimmed else 3)


def test_a_server_that_was_put_back_to_where_the_task_is_goes_on(
    server: EmbeddedPostgres, shop: Task
) -> None:
    do(server, "update s.a set v = 1")
    capture(shop)
    copy = copied(server)
    do(server, "update s.a set v = 2; update s.b set v = 2")  # nobody captures it
    put_back(server, copy)
    grow(server, shop)
    capture(shop)
    assert changes(shop) == 1 + 21


class Crash(Exception):  # noqa: N818 - stands for a kill
    pass


def die_before_acknowledging(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(PostgresSource, "acknowledge", crash)
        with pytest.raises(Crash):
            capture(task)


def test_a_crash_before_the_acknowledgement_goes_on(
    server: EmbeddedPostgres, shop: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server.settings = server.settings | {"max_wal_senders": "1"}  # the streams take turns
    server.restart()
    do(server, "update s.a set v = 1; update s.b set v = 1")
    do(
        server,
        "select pg_logical_emit_message(true, 'mine', 'x'), pg_logical_emit_message(false, 'mine', 'y')",
    )
    do(server, "begin; update s.a set v = 2; savepoint x; truncate s.b; commit")
    die_before_acknowledging(shop, monkeypatch)
    do(server, "update s.a set v = 3")
    caplog.clear()
    capture(shop)
    assert COMPARED in caplog.messages
    caplog.clear()
    capture(shop)
    assert COMPARED not in caplog.messages  # what was acknowledged costs nothing
    assert changes(shop) == 4


def test_a_crash_of_the_server_goes_on(
    server: EmbeddedPostgres, shop: Task, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        do(server, "update s.a set v = v + 1; update s.b set v = v + 1")
        capture(shop)
        server.stop("immediate")
        server.start()
    do(server, "create table public.unpublished (id int); insert into public.unpublished values (1)")
    caplog.clear()
    capture(shop)
    assert COMPARED in caplog.messages  # the slot's file is older
    assert changes(shop) == 6


@pytest.mark.parametrize(
    "sql",
    [
        "alter publication tailrace_shop drop table s.b; drop table s.b",
        "alter table s.b rename to c",
        "alter table s.b add column n int default 5; vacuum full s.b",
        "create table s.c (id int primary key); alter publication tailrace_shop add table s.c;"
        "insert into s.c values (1)",
    ],
)
def test_a_table_that_leaves_or_changes_before_it_is_sent_again_is_no_other_history(
    tmp_path: Path,
    database: str,
    db: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sql: str,
) -> None:
    """The server sends what it sent the first time: it decodes with the catalog of that moment."""
    db.execute(TABLES)
    shop = begun(tmp_path, database, caplog)
    db.execute("update s.b set v = 1")
    db.execute("update s.a set v = 1; update s.b set v = 2")
    die_before_acknowledging(shop, monkeypatch)
    commands.give(shop.commands_path, commands.REMOVE, ["s.b"], why="", who="me")
    for one in sql.split(";"):
        db.execute(one.encode())
    db.execute("update s.a set v = 2")
    caplog.clear()
    capture(shop)
    assert COMPARED in caplog.messages
