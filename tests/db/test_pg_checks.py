"""Every check fails when it should, says why, and its cure cures it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

import psycopg
import pytest

from tailrace.sources.base import Finding, LogSource
from tailrace.sources.embedded import EmbeddedPostgres
from tailrace.sources.pg_connect import lsn, position_at
from tailrace.sources.postgresql import PostgresSource

from .reading import Make

pytestmark = pytest.mark.db

A = ["public.a"]


@pytest.fixture
def a(db: psycopg.Connection) -> psycopg.Connection:
    """The database with one sound table."""
    db.execute("create table a (id int primary key, v text)")
    return db


@pytest.fixture
def role(a: psycopg.Connection, database: str) -> Iterator[tuple[str, PostgresSource]]:
    """A role that may do nothing, and the source as that role."""
    name = f"r_{a.info.dbname}"
    a.execute(f"create role {name} login")
    source = PostgresSource(database.replace("postgres@", f"{name}@"), "test")
    yield name, source
    source.close()
    a.execute(f"reassign owned by {name} to postgres; drop owned by {name}; drop role {name}")


def said(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.level, f.what) for f in findings]


def one(findings: list[Finding], part: str) -> Finding:
    found = [f for f in findings if part in f.what]
    assert len(found) == 1, findings
    assert found[0].where and found[0].cure
    return found[0]


def run(db: psycopg.Connection, statements: str) -> None:
    db.execute(statements.split("; or ", maxsplit=1)[0].split(", or ", maxsplit=1)[0])


def test_a_sound_source_has_no_findings(a: psycopg.Connection, make: Make) -> None:
    source = make()
    assert isinstance(source, LogSource)
    assert source.check(A, None) == []
    source.prepare(A)
    identity = source.identity()
    assert identity["slot"] == "tailrace_test" and identity["system_identifier"].isdigit()
    assert source.check(A, source.end_position(), identity) == []
    source.prepare(A)  # again: nothing to do
    assert source.check(A, source.end_position(), identity) == []


@pytest.mark.parametrize(
    ("name", "word"),
    [("system_identifier", "another server"), ("database", "another database"), ("slot", "another slot")],
)
def test_identity(a: psycopg.Connection, make: Make, name: str, word: str) -> None:
    source = make()
    assert one(source.check(A, None, {**source.identity(), name: "1"}), word).level == "error"


def test_what_the_role_lacks_is_granted_by_the_cures(
    a: psycopg.Connection, role: tuple[str, PostgresSource]
) -> None:
    _, source = role
    findings = source.check(A, None)
    assert [f.level for f in findings] == ["error"] * 4
    for part in ("may not replicate", "may not create the publication", "may not read it", "only its owner"):
        run(a, one(findings, part).cure)
    assert source.check(A, None) == []
    assert source.prepare(A) is True


def test_row_security(a: psycopg.Connection, role: tuple[str, PostgresSource]) -> None:
    name, source = role
    a.execute("alter table a enable row level security")
    run(a, one(source.check(A, None), "row-level security").cure)
    assert not [f for f in source.check(A, None) if "row-level" in f.what], name


@pytest.mark.parametrize(
    ("ddl", "warns"),
    [
        ("create table t (id int)", True),
        ("create table t (id int primary key); alter table t replica identity nothing", True),
        ("create table t (id int); alter table t replica identity full", False),
        (
            "create table t (id int not null unique); alter table t replica identity using index t_id_key",
            False,
        ),
        ("create table t (id int primary key)", False),
    ],
)
def test_replica_identity(db: psycopg.Connection, make: Make, ddl: str, warns: bool) -> None:
    db.execute(ddl)
    source = make()
    findings = source.check(["public.t"], None)
    assert bool(findings) == warns
    if warns:
        assert one(findings, "UPDATE and DELETE").level == "warning"
        run(db, findings[0].cure)
        assert source.check(["public.t"], None) == []


def test_what_cannot_be_captured(a: psycopg.Connection, make: Make) -> None:
    a.execute(
        """
        create unlogged table u (id int primary key); create view v as select 1;
        create materialized view m as select 1;
        create table p (id int primary key) partition by range (id);
        create table p1 partition of p for values from (0) to (9)
        """
    )
    source = make()
    findings = source.check(
        ["public.u", "public.v", "public.m", "public.p", "public.p1", "public.nosuch"], None
    )
    words = {f.where.rsplit(", ", 1)[1]: f.what for f in findings}
    assert words.keys() == {"public.u", "public.v", "public.m", "public.p1", "public.nosuch"}
    assert "unlogged" in words["public.u"] and "a view" in words["public.v"] and "a view" in words["public.m"]
    assert "partition of public.p" in words["public.p1"] and "no such table" in words["public.nosuch"]
    run(a, one(source.check(["public.u"], None), "unlogged").cure)
    assert source.check(["public.u"], None) == []


def test_a_publication_that_was_there(a: psycopg.Connection, make: Make) -> None:
    a.execute("create table b (id int primary key)")
    a.execute("create publication tailrace_test for table a, b with (publish = 'insert, update, delete')")
    source = make()
    findings = source.check(A, None)
    assert [f.level for f in findings] == ["error", "error", "warning"]
    for part in ("leaf partitions", "leaves out kinds", "more tables than the task: public.b"):
        run(a, one(findings, part).cure)
    assert source.check(A, None) == []


def test_the_publication_is_gone(a: psycopg.Connection, make: Make) -> None:
    source = make()
    source.prepare(A)
    at = source.end_position()
    a.execute("drop publication tailrace_test")
    finding = one(source.check(A, at), "the publication is gone")
    a.execute(finding.cure.split(";", maxsplit=1)[0])
    assert source.check(A, None) == []


def test_tables_are_added_and_none_taken_out(a: psycopg.Connection, make: Make) -> None:
    a.execute("create table b (id int primary key); create table child () inherits (b)")
    source = make()
    assert source.prepare(A) is True
    assert source.prepare(["public.b"]) is False
    rows = a.execute("select tablename::text from pg_publication_tables order by 1").fetchall()
    assert rows == [("a",), ("b",)]


def test_the_slot_is_ahead_of_the_log(a: psycopg.Connection, make: Make) -> None:
    source = make()
    source.prepare(A)
    source.start(None, [])
    source.close()
    confirmed = a.execute(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'tailrace_test'"
    )
    at = lsn(confirmed.fetchone()[0])
    assert source.check(A, position_at(at)) == []
    finding = one(source.check(A, position_at(at - 1)), "changes between are lost")
    assert finding.level == "error" and "baseline" in finding.cure
    a.execute(finding.cure.split(";")[0])
    assert source.check(A, None) == []


def test_the_slot_is_gone_or_not_ours_or_in_use(a: psycopg.Connection, make: Make, database: str) -> None:
    source = make()
    assert "slot is gone" in source.check(A, position_at(1))[0].what
    a.execute("select pg_create_logical_replication_slot('tailrace_test', 'test_decoding')")
    run(a, one(source.check(A, None), "not ours: plugin test_decoding").cure)
    assert source.check(A, None) == []
    source.prepare(A)
    source.start(None, [])
    other = make()
    finding = one(other.check(A, None), "reads the slot already")
    a.execute(finding.cure.split(", or ")[1])
    deadline = time.monotonic() + 10
    while other.check(A, None) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert other.check(A, None) == []


def test_an_open_transaction_that_slot_making_would_wait_for(a: psycopg.Connection, make: Make) -> None:
    # A minute is not waited for here: only that the look itself does not fail while one is open.
    with a.transaction():
        a.execute("insert into a values (1)")
        assert make().check(A, None) == []


def test_settings_of_the_server_and_a_lost_slot(pg: EmbeddedPostgres) -> None:
    tight = {"wal_level": "replica", "max_wal_senders": "2", "max_replication_slots": "1", "fsync": "off"}
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-pg-") as folder,
        EmbeddedPostgres(folder, settings=tight, binaries=pg.binaries) as server,
    ):

        def ask(after: bytes | None = None) -> list[Finding]:
            source = PostgresSource(server.url(), "test")
            try:
                return source.check(A, after)
            finally:
                source.close()

        def admin(*statements: str) -> None:
            with psycopg.connect(server.url(), autocommit=True) as session:
                for statement in statements:
                    session.execute(statement)

        admin("create table a (id int primary key)")
        admin(one(ask(), "wal_level is replica").cure.split(";")[0])
        server.restart()
        assert ask() == []
        admin("select pg_create_logical_replication_slot('other', 'pgoutput')")
        admin(one(ask(), "max_replication_slots").cure.split(", or ")[1].split(";")[0])
        server.restart()
        assert ask() == []
        source = PostgresSource(server.url(), "test")
        source.prepare(A)
        with source.snapshot():
            assert one(ask(), "one max_wal_senders is left").level == "warning"
        source.start(None, [])
        admin("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
        with source.snapshot():
            full = one(ask(), "all 2 max_wal_senders are in use")
        admin(full.cure.split(";")[0])
        source.close()
        for _ in range(4):
            admin(
                "insert into a select coalesce(max(id), 0) + i from a, generate_series(1, 1000) i group by i",
                "select pg_switch_wal()",
            )
        admin("checkpoint")
        lost = one(ask(position_at(1 << 40)), "gave the slot up")
        assert lost.level == "error"
        admin(lost.cure.split(";")[0])
        assert ask() == []
