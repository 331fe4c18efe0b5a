"""The rights of a PostgreSQL target's role: what `check` says of them, and that the least are enough."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import SourceError
from tailrace.execution import BackgroundSession
from tailrace.operate import checks, table_commands
from tailrace.operate.drop import drop
from tailrace.runtime.pipeline import Pipeline
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.state import commands

from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db


@dataclass
class Lake:
    """A database, an administrator's connection to it, and a role that may do nothing there."""

    admin: psycopg.Connection[Any]
    role: str
    url: str

    def rows(self, query: str) -> list[Any] | None:
        """What a query gives; None: there is no such table (yet)."""
        try:
            return self.admin.execute(query.encode(), prepare=False).fetchall()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return None

    def give(self, cure: str) -> None:
        self.admin.execute(cure.encode())


@pytest.fixture
def lake(pg: EmbeddedPostgres) -> Iterator[Lake]:
    name = f"l{uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg.url(), autocommit=True) as server:
        server.execute(f"create database {name}")
        with psycopg.connect(pg.url(name), autocommit=True) as admin:
            admin.execute(f"create role {name} login; revoke all on database {name} from public")
            admin.execute(f"grant connect on database {name} to {name}")
            yield Lake(admin, name, pg.url(name).replace("postgres@", f"{name}@"))
        server.execute(f"drop database {name} with (force)")
        server.execute(f"drop role {name}")


def shop(folder: Path, source: str, lake: Lake, more: str = "") -> Task:
    (folder / "shop.yaml").write_text(
        f"name: shop\nhome: home\nsource: {{url: '{source}', tables: ['s.*']}}\ntarget: '{lake.url}'\n{more}"
    )
    return load(folder / "shop.yaml")


def found(task: Task) -> list[tuple[str, str, list[str]]]:
    """Level, what, and the lines of the fix."""
    all_of_them = [one for one in checks.check(task, never) if one.level != "note"]
    return [(one.level, one.what, [line.strip() for line in one.cure.splitlines()]) for one in all_of_them]


def never() -> Any:
    raise AssertionError("Spark was asked for")


def test_check_says_what_the_role_lacks_and_run_refuses_as_well(
    tmp_path: Path, database: str, db: psycopg.Connection, lake: Lake
) -> None:
    db.execute("create schema s; create table s.a (id int primary key)")
    task, role, lacks = (
        shop(tmp_path, database, lake),
        lake.role,
        f"role {lake.role} has insufficient rights at the target:",
    )
    made = (
        "error",
        f"{lacks} to create 2 schemas (s, tailrace); to create temporary tables in database {role}",
        [
            f'CREATE SCHEMA "s" AUTHORIZATION "{role}";',
            f'CREATE SCHEMA "tailrace" AUTHORIZATION "{role}";',
            f'GRANT TEMPORARY ON DATABASE "{role}" TO "{role}";',
            f'-- or, so that "{role}" creates the schemas: GRANT CREATE ON DATABASE "{role}" TO "{role}";',
        ],
    )
    assert found(task) == [made]
    with pytest.raises(SourceError, match="to create 2 schemas"):
        checks.before_run(task, never)
    lake.give("\n".join(made[2]))
    assert found(task) == []


def test_check_says_what_the_role_lacks_of_what_is_there(
    tmp_path: Path, database: str, db: psycopg.Connection, lake: Lake
) -> None:
    """What it lacks for changes is an error, what only DDL would need, a warning."""
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int primary key)"
    )
    task, role = shop(tmp_path, database, lake), lake.role
    lake.give(f"grant create, temporary on database {role} to {role}")
    assert found(task) == []
    lake.give("create schema s; create schema tailrace; create table s.a (id int primary key)")
    lake.give("create table tailrace.tailrace_progress (task text, relid oid)")
    (one,) = found(task)
    assert one == (
        "error",
        f"role {role} has insufficient rights at the target: to create tables in 2 schemas (s, tailrace); "
        "to own table s.a; to write table tailrace.tailrace_progress",
        [
            f'GRANT USAGE, CREATE ON SCHEMA "s" TO "{role}";',
            f'GRANT USAGE, CREATE ON SCHEMA "tailrace" TO "{role}";',
            f'ALTER TABLE "s"."a" OWNER TO "{role}";',
            f'GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "tailrace"."tailrace_progress" TO "{role}";',
        ],
    )
    lake.give("\n".join(one[2]))
    assert found(task) == []
    lake.give("create table s.b (id int primary key); revoke create on schema s from public")
    lake.give(f"revoke create on schema s from {role}; alter table s.a owner to postgres")
    lake.give(f"grant select, insert, update, delete on s.a, s.b to {role}")
    assert found(task) == [
        (
            "warning",
            f"role {role} has insufficient rights at the target for DDL, truncates and new baselines: "
            "to create tables in schema s; to own 2 tables (s.a, s.b)",
            [
                f'GRANT USAGE, CREATE ON SCHEMA "s" TO "{role}";',
                f'ALTER TABLE "s"."a" OWNER TO "{role}";',
                f'ALTER TABLE "s"."b" OWNER TO "{role}";',
            ],
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize("window", ["exact", "open"])
def test_the_least_rights_are_enough(
    tmp_path: Path, database: str, db: psycopg.Connection, lake: Lake, window: str
) -> None:
    """Those of docs/postgresql-rights.md: schemas of its own, and temporary tables."""
    db.execute("create schema s; create table s.a (id int primary key, v int); insert into s.a values (1, 1)")
    more = f"keylog: {{mode: all}}\nbaseline: {{window: {window}}}\n"
    more += "freshness: 100ms\napply: {ddl: {rename_table: apply}}\n"
    task = shop(tmp_path, database, lake, more)
    lake.give("".join(f"create schema {name} authorization {lake.role};" for name in ("s", "tailrace")))
    lake.give(f"grant temporary on database {lake.role} to {lake.role}")
    assert found(task) == []
    stop = threading.Event()
    pipeline = Pipeline(task, BackgroundSession(never).as_session, stop=stop)  # type: ignore[arg-type]
    with meanwhile(Capture(task, stop=stop).run, stop=stop), meanwhile(pipeline.run, stop=stop):

        def becomes(query: str, *rows: tuple[Any, ...]) -> None:
            wait_for(lambda: lake.rows(query) == list(rows), 30)

        becomes("select * from s.a", (1, 1))
        db.execute("insert into s.a values (2, 2); delete from s.a where id = 1")
        db.execute("alter table s.a add column w text; update s.a set w = 'x'")
        becomes("select * from s.a", (2, 2, "x"))
        db.execute("alter table s.a rename column w to u; alter table s.a drop column v")
        db.execute("insert into s.a values (3, 'y')")
        becomes("select id, u from s.a order by 1", (2, "x"), (3, "y"))
        db.execute("alter table s.a rename to b")
        becomes("select id, u from s.b order by 1", (2, "x"), (3, "y"))
        db.execute("truncate s.b; insert into s.b values (4, 'n')")
        becomes("select id, u from s.b", (4, "n"))
        before = lake.rows("select 's.b'::regclass::oid")
        table_commands.give(task, commands.RESYNC, ["s.a"])  # the task knows it by that name
        wait_for(lambda: lake.rows("select to_regclass('s.b')::oid") not in ([(None,)], before), 30)
        becomes("select id, u from s.b", (4, "n"))
        db.execute("create table s.c (id int primary key)")
        becomes("select * from s.c")
    assert found(task) == []
    assert drop(task, dry_run=False, targets=True).targets
    assert lake.rows("select relname from pg_class where relnamespace = 's'::regnamespace") == []
