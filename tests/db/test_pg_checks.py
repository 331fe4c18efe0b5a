"""Every check fails when it should, says why, and its cure cures it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import load
from tailrace.errors import UnsupportedError
from tailrace.sources.base import Finding, LogSource, Snapshot
from tailrace.sources.postgresql.connect import position_at
from tailrace.sources.postgresql.source import PostgresSource
from tailrace.state import commands
from tailrace.state.baselines import read_baselines

from .conftest import OwnServer
from .reading import Make

pytestmark = pytest.mark.db

SINCE_18 = pytest.mark.since(18)
"""Generated columns can be in the log, or virtual."""

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


LACKS = (
    "has insufficient rights: to replicate; to use schema s; to read 2 tables (s.b, s.c); "
    "to create the publication tailrace_test"
)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["an administrator publishes", "the role publishes"])
def test_what_the_role_lacks_is_one_block_of_sql_and_nothing_more_is_needed(
    a: psycopg.Connection, role: tuple[str, PostgresSource], way: str, tmp_path: Path
) -> None:
    """The whole of a capture with exactly these rights, also with a table that joins."""
    name, source = role
    a.execute(f"create role {name}_o nologin; create schema s authorization {name}_o")
    for table in "bcd":
        a.execute(f"create table s.{table} (id int primary key); alter table s.{table} owner to {name}_o")
        a.execute(f"insert into s.{table} values (1)")
    found = one(source.check(["s.b", "s.c"], None), LACKS)
    block, _, other = found.cure.partition("-- or, instead of the last statement")
    assert "OWNER TO" not in found.cure and other
    if way == "the role publishes":
        last = block.rstrip().rstrip(";").rfind(";")
        block = block[: last + 1] + other.partition(": ")[2]
    a.execute(block)
    assert source.check(["s.b", "s.c"], None) == []
    path = tmp_path / "test.yaml"
    text = f"name: test\ntarget: {{path: lake}}\nsource: {{url: '{source.url}', tables: [s.b, s.c]}}\n"
    path.write_text(text + "freshness: 50ms\nbaseline: {workers: 1}\n")
    task = load(path)
    Capture(task, once=True).run()
    a.execute("insert into s.b values (2)")
    path.write_text(path.read_text().replace("s.b, s.c]", "s.b, s.c, s.d]"))
    joined = source.check(["s.b", "s.c", "s.d"], None, source.identity())
    if way == "the role publishes":  # a member of the owner may do what that one may
        assert joined == []
    else:
        a.execute(one(joined, "has insufficient rights: to read table s.d; to publish table s.d").cure)
    Capture(load(path), once=True).run()
    commands.give(task.commands_path, commands.REMOVE, ["s.d"], why="", who="me")
    Capture(load(path), once=True).run()
    assert sorted(read_baselines(task.control_path("baselines"))) == ["s.b", "s.c", "s.d"]
    source.close()
    a.execute("select pg_drop_replication_slot('tailrace_test')")
    a.execute(f"drop publication tailrace_test; drop owned by {name}_o; drop role {name}_o")


def test_row_security(a: psycopg.Connection, role: tuple[str, PostgresSource]) -> None:
    name, source = role
    a.execute("alter table a enable row level security")
    a.execute(one(source.check(A, None), "the rows hidden by row-level security of table public.a").cure)
    assert source.check(A, None) == [], name


@pytest.mark.parametrize(
    ("ddl", "warns"),
    [
        ("create table t (id int); alter table t replica identity full", False),
        (
            "create table t (id int not null unique); alter table t replica identity using index t_id_key",
            False,
        ),
        ("create table t (id int primary key)", False),
        pytest.param(
            "create table t (id int primary key, z int generated always as (id + 1) virtual)",
            False,
            marks=SINCE_18,
        ),
        pytest.param(
            "create table t (id int primary key, z int generated always as (id + 1) virtual);"
            " alter table t replica identity full",
            True,
            marks=SINCE_18,
        ),
        (
            "create table t (id int primary key, z int generated always as (id + 1) stored);"
            " alter table t replica identity full",
            False,
        ),
        pytest.param(
            "create table t (id int primary key, z int generated always as (id + 1) stored);"
            " alter table t replica identity full; create publication tailrace_test for table t"
            " with (publish_via_partition_root)",
            True,
            marks=SINCE_18,
        ),
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
    assert "unlogged" in words["public.u"] and "a view" in words["public.v"]
    assert "a materialized view" in words["public.m"]
    assert "partition of public.p" in words["public.p1"] and "no such table" in words["public.nosuch"]
    run(a, one(source.check(["public.u"], None), "unlogged").cure)
    assert source.check(["public.u"], None) == []


def test_a_table_without_columns(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        "create table z (); create table b (g int generated always as (1) stored); create table c (a int);"
        " alter table c drop a; insert into z default values"
    )
    source = make()
    sent = int(db.info.server_version >= 180000)  # stored generated columns are in the log since then
    tables = ["public.z", "public.b", "public.c"]
    assert source.columns([*tables, "public.gone"]) == {"public.z": [], "public.b": ["g"], "public.c": []}
    assert [(f.where.rsplit(", ", 1)[1], f.level, f.what, f.cure) for f in source.check(tables, None)
            if "replica identity" not in f.what] == [
        (t, "error", "it has no column that is captured: a target could not store its rows",
         f"add a column, or leave the table out (`source: {{exclude: [{t}]}}`)")
        for t in tables if t != "public.b" or not sent
    ]  # fmt: skip
    relation = source.relation("public.z")
    with pytest.raises(UnsupportedError, match="no column that is captured"):
        list(source.read_part(Snapshot("", b""), relation, source.parts(relation, 100)[0]))
    db.execute("alter table z add id int; alter table c add id int")
    assert source.check(["public.z", "public.c"], None) == []


def test_a_publication_that_was_there(a: psycopg.Connection, make: Make) -> None:
    a.execute("create table b (id int primary key)")
    a.execute("create publication tailrace_test for table a, b with (publish = 'insert, update, delete')")
    source = make()
    findings = source.check(A, None)
    assert [f.level for f in findings] == ["error", "error", "warning"]
    for part in ("leaf partitions", "leaves out kinds", "more tables than the task: public.b"):
        run(a, one(findings, part).cure)
    assert source.check(A, None) == []


@pytest.mark.parametrize(
    "of", ["all tables", pytest.param("tables in schema public", marks=pytest.mark.since(15))]
)
def test_tables_that_a_publication_does_not_name_cannot_be_dropped_from_it(
    a: psycopg.Connection, make: Make, of: str
) -> None:
    a.execute("create table b (id int primary key)")
    a.execute(f"create publication tailrace_test for {of} with (publish_via_partition_root = true)")
    finding = one(make().check(A, None), "more tables than the task: public.b")
    assert (
        finding.cure
        == "add them to the task; a publication of all tables, or of a schema, cannot leave out any"
    )


def test_the_publication_is_gone(a: psycopg.Connection, make: Make) -> None:
    source = make()
    source.prepare(A)
    at = source.end_position()
    a.execute("drop publication tailrace_test")
    assert "--new-stream" in one(source.check(A, at), "the publication is gone").cure
    source.renew()
    assert source.check(A, None) == []


def test_tables_are_added_and_none_taken_out(a: psycopg.Connection, make: Make) -> None:
    a.execute("create table b (id int primary key); create table child () inherits (b)")
    source = make()
    assert source.prepare(A) is True
    assert source.prepare(["public.b"]) is False
    rows = a.execute("select tablename::text from pg_publication_tables order by 1").fetchall()
    assert rows == [("a",), ("b",)]


def test_an_open_transaction_that_slot_making_would_wait_for(a: psycopg.Connection, make: Make) -> None:
    # A minute is not waited for here: only that the look itself does not fail while one is open.
    with a.transaction():
        a.execute("insert into a values (1)")
        assert make().check(A, None) == []


def test_settings_of_the_server_and_a_lost_slot(own_server: OwnServer) -> None:
    tight = {"wal_level": "replica", "max_wal_senders": "2", "max_replication_slots": "1", "fsync": "off"}
    with own_server(settings=tight) as server:

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

        def set_to(name: str, value: str) -> None:
            admin(f"alter system set {name} = '{value}'", "select pg_reload_conf()")
            with psycopg.connect(server.url(), autocommit=True) as session:
                while session.execute(f"show {name}").fetchone() != (
                    value,
                ):  # the server reads it when it can
                    time.sleep(0.01)

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
            assert one(ask(), "only one of max_wal_senders is left").level == "warning"
        source.start(None, [])
        at = source.end_position()
        with source.snapshot():
            full = one(ask(), "all 2 max_wal_senders are in use")
        admin(full.cure.split(";")[0])
        source.close()
        for _ in range(6):
            admin(
                "insert into a select (select coalesce(max(id), 0) from a) + i from generate_series(1, 100) i",
                "select pg_switch_wal()",
            )
        set_to("max_wal_size", "32MB")
        much = one(ask(at), "more than max_wal_size")
        assert much.level == "warning" and "no process reads it" in much.what
        set_to("max_slot_wal_keep_size", "96MB")
        near = one(ask(at), "the server invalidates it after")
        assert near.level == "warning" and "max_slot_wal_keep_size is 96MB" in near.what
        set_to("max_slot_wal_keep_size", "1MB")
        admin("checkpoint")
        (lost,) = ask(position_at(1))
        assert lost.level == "error" and "invalidated the slot" in lost.what and "--new-stream" in lost.cure
        source.renew()
        source.close()
        assert ask() == []
