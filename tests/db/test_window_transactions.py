"""The transactions that a baseline in an open window waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from tailrace.sources.base import Snapshot
from tailrace.sources.postgresql import slot

from .reading import Make
from .test_pg_baseline import baseline

pytestmark = pytest.mark.db


def test_an_open_window_waits_for_commits_that_wait_for_a_standby(
    db: psycopg.Connection, database: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their records are in the log, before the window's position, and nobody sees their rows yet."""
    db.execute("create table a (id int primary key); insert into a values (1)")
    source = make()
    source.prepare(["public.a"])
    hangs = threading.Event()
    next_transaction, writing = slot.next_transaction, threading.Thread(target=_inserts, args=(database,))

    def then_it_commits(session: psycopg.Connection) -> int:
        found = next_transaction(session)
        if not writing.ident:
            writing.start()
            _hanging(db)
            hangs.set()
        return found

    monkeypatch.setattr(slot, "next_transaction", then_it_commits)
    with _no_standby(db, database), ThreadPoolExecutor(1) as pool:
        rows = pool.submit(lambda: (source.window(), baseline(source, Snapshot("", b""), "public.a"))[1])
        assert hangs.wait(20)
        time.sleep(0.3)
        db.execute("select pg_cancel_backend(%s)", (_hanging(db),))  # it waits no longer, and is committed
        assert sorted(rows.result(10)["id"].to_pylist()) == [1, 2]
        writing.join()


def test_the_newest_transaction_is_among_those_that_are_waited_for(
    db: psycopg.Connection, database: str
) -> None:
    """Nobody has ended one with a greater id."""
    db.execute("create table a (id int primary key)")
    with psycopg.connect(database) as other:
        other.execute("insert into a values (1)")
        (mine,) = other.execute("select pg_current_xact_id()::text::bigint").fetchone() or (0,)
        assert slot.oldest_transaction(db) <= mine < slot.next_transaction(db)


@contextmanager
def _no_standby(db: psycopg.Connection, database: str) -> Iterator[None]:
    """Commits that wait for a standby wait for ever."""
    db.execute("alter system set synchronous_standby_names = 'nobody'")
    db.execute("select pg_reload_conf()")
    try:
        _taken_over(db, database)
        yield
    finally:
        db.execute("alter system reset synchronous_standby_names")
        db.execute("select pg_reload_conf()")


def _taken_over(db: psycopg.Connection, database: str) -> None:
    """Waits until the server does so, which takes settings over in its own time."""
    enough = threading.Event()

    def commits() -> None:
        with psycopg.connect(database, autocommit=True) as session:
            while not enough.is_set():
                session.execute("select pg_logical_emit_message(true, 'test', '')")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(commits)
        try:
            waits = _hanging(db)
        finally:
            enough.set()
        db.execute("select pg_cancel_backend(%s)", [waits])


def _inserts(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("insert into a values (2)")


def _hanging(db: psycopg.Connection) -> int:
    """The process whose commit waits for a standby."""
    for _ in range(200):
        row = db.execute("select pid from pg_stat_activity where wait_event = 'SyncRep'").fetchone()
        if row:
            return int(row[0])
        time.sleep(0.05)
    raise AssertionError("no commit waits")
