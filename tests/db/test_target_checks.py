"""A target that is a database: whether it can be asked, and whether what it gets is captured again."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.capture import process
from tailrace.capture.process import Capture
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import ApplyError, SourceError, TailraceError
from tailrace.operate import checks, table_commands
from tailrace.operate.drop import drop
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres, free_port
from tailrace.state import commands, ledger
from tailrace.targets.postgresql.connection import Database, open_session

from .conftest import OwnServer

pytestmark = pytest.mark.db
SAME = "source and target are the same table of one database: its changes would be captured again"
AGAIN = "its target {} is in the source's database, and the task captures it: changes would be captured again"
NOTES = "the task captures tailrace.tailrace_progress, where it records its progress: it would never be up to date"


@pytest.fixture
def tables(db: psycopg.Connection) -> psycopg.Connection:
    """Two tables in a schema."""
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int primary key)"
    )
    return db


@pytest.fixture
def another(pg: EmbeddedPostgres, db: psycopg.Connection) -> Iterator[str]:
    """The address of the same database for a role that may ask nothing of the server, and as another text."""
    name = f"r_{uuid.uuid4().hex[:12]}"
    db.execute(f"create role {name} login; revoke execute on function pg_control_system() from public")
    yield pg.url(db.info.dbname).replace("postgres@", f"{name}@") + "&application_name=another"
    db.execute(
        f"drop owned by {name}; drop role {name}; grant execute on function pg_control_system() to public"
    )


def shop(folder: Path, source: str, target: str, tables: str = "['s.*']", more: str = "") -> Task:
    file = folder / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{source}', tables: {tables}}}\ntarget: '{target}'\n{more}"
    )
    return load(file)


def found(task: Task) -> list[tuple[str, str]]:
    """Where and what, of errors."""
    all_of_them = checks.check(task, lambda: pytest.fail("no session is needed"))
    return [(one.where.rpartition("/")[2], one.what) for one in all_of_them if one.level == "error"]


def made(db: psycopg.Connection) -> list[Any]:
    """What a task made at its source."""
    slots = "select slot_name::text from pg_replication_slots where database = current_database()"
    return db.execute(f"{slots} union all select pubname::text from pg_publication").fetchall()


def test_a_source_is_not_its_own_target(
    tmp_path: Path, database: str, another: str, tables: psycopg.Connection
) -> None:
    task = shop(tmp_path, database, another)
    checked = CliRunner().invoke(app, ["check", str(tmp_path / "shop.yaml"), "--json"])
    said = [(f["where"], f["what"]) for f in json.loads(checked.stdout)["findings"]]
    assert (checked.exit_code, said) == (3, [("s.a", SAME), ("s.b", SAME)])
    ran = CliRunner().invoke(app, ["run", str(tmp_path / "shop.yaml"), "--once"])
    assert isinstance(ran.exception, SourceError) and SAME in str(ran.exception)
    assert "?schema=NAME" in str(ran.exception)
    assert not Path(task.log_path).exists()
    with pytest.raises(SourceError, match="captured again"):
        Capture(task, once=True).run()
    assert made(tables) == []


WRITES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("['s.*']", "?schema=copies", "", []),
    ("['s.*']", "?schema=s", "", [("s.a", SAME), ("s.b", SAME)]),
    ("['s.*']", "", "tables: {s.a: {target: x.a}, s.b: {target: x.b}}", []),
    ("[s.a]", "", "tables: {s.a: {target: s.b}}", []),
    ("['s.*']", "", "tables: {s.a: {target: s.b}, s.b: {target: x.b}}", [("s.a", AGAIN.format("s.b"))]),
    ("['s.*']", "", "tables: {s.a: {target: s.new}, s.b: {target: x.b}}", [("s.a", AGAIN.format("s.new"))]),
    ("['*.*'], exclude: ['copies.*', 'tailrace.*']", "?schema=copies", "", []),
    (
        "['*.*']", "?schema=copies", "",
        [("s.a", AGAIN.format("copies.a")), ("s.b", AGAIN.format("copies.b")), ("DB", NOTES)],
    ),
    ("['s.*']", "", "policies: {s.*: 1}", []),
]  # fmt: skip
"""Selected tables, schema of the target, more of the task file, and what check finds."""


def test_what_a_task_may_write_to_its_sources_database(
    tmp_path: Path, database: str, tables: psycopg.Connection
) -> None:
    name = tables.info.dbname
    for selected, schema, more, expected in WRITES:
        target = database.replace("?", f"{schema}&") if schema else database
        task = shop(tmp_path, database, target, selected, more)
        want = [(name if where == "DB" else where, what) for where, what in expected]
        assert found(task) == want, (selected, schema, more)


def test_tables_of_another_database_have_the_same_names(
    tmp_path: Path, database: str, tables: psycopg.Connection, pg: EmbeddedPostgres
) -> None:
    assert found(shop(tmp_path, database, pg.url("template1"), "['*.*']")) == []


def test_a_source_table_is_not_dropped_as_a_target(
    tmp_path: Path, database: str, tables: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of an earlier release, which took that target."""
    task = shop(tmp_path, database, database)
    monkeypatch.setattr(process, "feeding_findings", lambda *_: [])
    Capture(task, once=True).run()
    tables.execute("insert into s.a values (1); insert into s.b values (2)")
    for dry_run, ask_source in ((True, True), (False, True), (False, False)):
        with pytest.raises(ApplyError, match="it is not dropped"):
            drop(task, dry_run=dry_run, targets=True, source=ask_source)
    before = commands.read(task.commands_path)
    for dry_run in (True, False):
        with pytest.raises(ApplyError, match="it is not dropped"):
            table_commands.give(task, commands.REMOVE, ["s.a"], drop_target=True, dry_run=dry_run)
    assert commands.read(task.commands_path) == before
    assert tables.execute("select id from s.a union all select id from s.b").fetchall() == [(1,), (2,)]
    assert drop(task, dry_run=False, source=True).targets == []


def test_a_target_that_cannot_be_asked_is_a_finding(
    tmp_path: Path, database: str, tables: psycopg.Connection
) -> None:
    """Nothing is begun. The task waits for one that it has reached before."""
    nowhere = f"postgresql://postgres@127.0.0.1:{free_port()}/shop"
    for target, cure in (
        (database.replace(tables.info.dbname, "nosuch"), "correct the database's name in the address"),
        (nowhere, "check the host and port of the address, and that the server is running"),
    ):
        task = shop(tmp_path, database, target)
        (one,) = checks.check(task, lambda: pytest.fail("no session is needed"))
        assert (one.level, one.what.partition(": ")[0]) == ("error", "the target does not answer")
        assert one.cure == f"{cure}; it is the target's address (`target.database`, or `--target`)"
        ran = CliRunner().invoke(app, ["run", str(tmp_path / "shop.yaml"), "--once"])
        assert isinstance(ran.exception, TailraceError) and "the target does not answer" in str(ran.exception)
        assert made(tables) == [] and not Path(task.log_path).exists()
    stored = ledger.Stored(0, "0" * 35, "00" * 20, dt.datetime.now(dt.timezone.utc))
    ledger.write_applied(task.control_path("applied"), stored, [], ledger.APPLIED_APP)
    (one,) = checks.check(task, lambda: pytest.fail("no session is needed"))
    assert (one.level, one.what.rpartition("; ")[2]) == ("warning", "the task waits for it")


def test_a_target_database_that_lacks_characters_is_a_warning(
    tmp_path: Path, pg: EmbeddedPostgres, database: str, tables: psycopg.Connection
) -> None:
    narrow = f"{tables.info.dbname}_narrow"
    tables.execute(f"create database {narrow} encoding 'LATIN1' locale 'C' template template0")  # type: ignore[arg-type]
    try:
        (one,) = checks.check(
            shop(tmp_path, database, pg.url(narrow)), lambda: pytest.fail("no session is needed")
        )
    finally:
        tables.execute(f"drop database {narrow} with (force)")  # type: ignore[arg-type]
    assert (one.level, one.what.partition(":")[0]) == (
        "warning",
        "the target's database has the encoding LATIN1",
    )
    assert one.cure == "use a target database that was created with ENCODING 'UTF8'"


@pytest.mark.slow
def test_a_target_that_takes_no_writes_is_a_finding(
    tmp_path: Path, own_server: OwnServer, database: str
) -> None:
    """A standby: nothing that a session sets helps."""
    with own_server() as server:
        task = shop(tmp_path, database, server.tcp_url())
        assert found(task) == []
        server.stop()
        (server.folder / "standby.signal").touch()
        server.start()
        assert found(task) == [("postgres", "the target's server is a standby: it takes no writes")]
        place = Database.of(task.target.database)
        with pytest.raises(ApplyError) as caught, open_session(place, place.label) as mine:
            mine.execute("create schema s")
        assert caught.value.hint == "the server takes no writes, as a standby does: use the primary's address"


SINCE_18 = pytest.mark.since(18)
"""Columns that the source computes can be in its log."""
GENERATED = "create table {}.a (id int primary key, n int, twice int generated always as (n * 2) stored)"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("create table lake.a (id int primary key, n int, twice int)", None),
        pytest.param(
            "create table lake.a (id int primary key, n int)",
            "it has no column twice (integer)",
            marks=SINCE_18,
        ),
        (
            "create table lake.a (id int primary key, n int, twice int); insert into lake.a values (1)",
            "has rows",
        ),
        pytest.param(GENERATED.format("lake"), "column twice is computed", marks=SINCE_18),
        (
            "create table lake.a (id int primary key, n int generated always as identity, twice int)",
            "column n is GENERATED ALWAYS, and cannot be updated",
        ),
        ("create table lake.a (id int generated always as identity primary key, n int, twice int)", None),
    ],
)
def test_a_target_that_somebody_made_is_looked_at_before_the_run(
    tmp_path: Path, database: str, db: psycopg.Connection, made: str, said: str | None
) -> None:
    db.execute("create schema s; create schema lake")
    db.execute(GENERATED.format("s"))  # type: ignore[arg-type]
    db.execute(made)  # type: ignore[arg-type]
    task = shop(tmp_path, database, f"{database}&schema=lake")
    if said is None:
        assert found(task) == []
    else:
        ((where, what),) = found(task)
        assert said in what and where == "s.a"


@SINCE_18
def test_a_column_that_the_target_computes_can_be_left_out(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create schema lake")
    for schema in ("s", "lake"):
        db.execute(GENERATED.format(schema))  # type: ignore[arg-type]
    task = shop(tmp_path, database, f"{database}&schema=lake", more="tables: {s.a: {drop: [twice]}}\n")
    assert found(task) == []
