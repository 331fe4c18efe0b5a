"""A task whose target is a PostgreSQL database: baseline by COPY, changes, layouts, a crash between the halves."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from tailrace.apply.checks.adoption import adoption_findings
from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError, StorageFullError
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of
from tailrace.operate.status import status
from tailrace.runtime.pipeline import Pipeline
from tailrace.sources import open_source
from tailrace.state import lifecycle
from tailrace.targets.postgresql.connection import Database
from tailrace.targets.postgresql.load import PostgresLanding
from tailrace.validate.postgresql_target import hold_target
from tailrace.validate.sessions import Sessions
from tailrace.validate.validation import ValidationReport, validate

from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]

CREATE = """
create schema s;
create table s.t (id int, part text, v text, n numeric(12,2), at timestamptz, b bytea, x double precision,
  primary key (id, part));
alter table s.t alter v set storage external;
create table s.bag (v text, d date);
alter table s.bag replica identity full;
insert into s.t select i, 'p' || i % 3, case when i % 7 > 0 then repeat('w', i % 5) end, i * 1.01,
  timestamptz '2026-01-01' + i * interval '1 second', decode(md5(i::text), 'hex'), i / 3.0 from generate_series(1, 20000) i;
insert into s.bag select 'w' || i % 3, case when i % 2 > 0 then date '2026-01-01' end from generate_series(1, 60) i;
"""


@pytest.fixture
def task(tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    db.execute(CREATE)
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\n"
        f"target: '{database}&schema=lake'\nbaseline: {{workers: 2, rows_per_part: 8000}}\n"
    )
    return load(file)


def differences(db: psycopg.Connection, table: str) -> int:
    """Rows that one side has more often than the other."""
    sides = (
        f"table s.{table} except all table lake.{table}",
        f"table lake.{table} except all table s.{table}",
    )
    found = db.execute(f"select count(*) from (({sides[0]}) union all ({sides[1]})) d").fetchone()
    assert found is not None
    return int(found[0])


def validated(task: Task, spark: object) -> ValidationReport:
    """Captures and stores what the source has (and applies it, once the target is held)."""
    source = open_source(task)

    def catch_up() -> None:
        Capture(task, once=True).run()
        done = Pipeline(task, spark)  # type: ignore[arg-type]
        done.drain()

    calls = iter([lambda: None, catch_up])

    def next_call() -> None:
        next(calls)()

    try:
        return validate(task, Sessions(spark), source, catch_up=next_call)  # type: ignore[arg-type]
    finally:
        source.close()


@pytest.mark.slow
def test_a_task_with_a_database_as_target(task: Task, db: psycopg.Connection, spark: object) -> None:
    drain(task, spark)
    assert (differences(db, "t"), differences(db, "bag")) == (0, 0)
    key = "select conkey from pg_constraint where conrelid = 'lake.t'::regclass and contype = 'p'"
    assert db.execute(key).fetchall() == [([1, 2],)]
    db.execute("update s.t set v = repeat('large', 2000) where id <= 10; delete from s.t where id % 10 = 3")
    db.execute("insert into s.t (id, part, x) values (-1, '', 'NaN'), (-2, 'é', '-Infinity')")
    db.execute(
        "update s.t set n = n + 1 where id <= 10; update s.t set id = id + 100000, part = 'moved' where id < 5"
    )
    db.execute("delete from s.bag where ctid in (select ctid from s.bag where v = 'w1' limit 7)")
    db.execute(
        "update s.bag set v = 'W' where v = 'w2' and d is null; insert into s.bag values (null, null), (null, null)"
    )
    drain(task, spark)
    assert (differences(db, "t"), differences(db, "bag")) == (0, 0)
    db.execute(
        "alter table s.t rename v to word; alter table s.t alter id type bigint, alter n type numeric(15,3)"
    )
    # Last: a rewrite makes the source forget which value older rows have (docs/limits.md).
    db.execute("alter table s.t add k int default 7; update s.t set k = 8 where id = 20; truncate s.bag")
    db.execute("insert into s.bag values ('new', null)")
    drain(task, spark)
    assert (differences(db, "t"), differences(db, "bag")) == (0, 0)
    shown = {t.table: t for t in status(task).tables}
    assert shown["s.t"].behind == 0 and shown["s.t"].target_version > 0
    left = "select count(*) from pg_tables where schemaname = 'tailrace' and tablename not in ('tailrace_progress', 'tailrace_tasks', 'tailrace_notes')"
    assert db.execute(left).fetchone() == (0,)
    assert validated(task, spark).equal
    db.execute("update lake.t set k = 9 where id = 20; delete from lake.t where id = 21")
    db.execute(
        "update s.t set k = 1 where id = 22; insert into s.bag values ('newer', null)"
    )  # not applied yet
    report = validated(task, spark)
    assert {t.table: t.differing_rows for t in report.tables} == {"s.t": 3, "s.bag": 0}
    assert all(t.overlaid for t in report.tables)


@pytest.mark.slow
def test_a_baseline_that_broke_off_is_taken_again(
    task: Task, db: psycopg.Connection, spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: PostgresLanding, *_: object) -> int:
        raise StorageFullError("broken off")

    with monkeypatch.context() as crash:
        crash.setattr(PostgresLanding, "commit", broken)
        with pytest.raises(StorageFullError, match="broken off"):
            drain(task, spark)
    assert db.execute(
        "select to_regclass('lake.t') is null and to_regclass('lake.bag') is null"
    ).fetchone() == (True,)
    drain(task, spark)
    assert (differences(db, "t"), differences(db, "bag")) == (0, 0)
    left = "select count(*) from pg_tables where schemaname = 'tailrace' and tablename like 'land%'"
    assert db.execute(left).fetchone() == (0,)


DIFFERS = (
    "does not fit: it has no column id (integer); it has no column part (text); it has no column v (text); "
    "it has no column n (numeric(12,2)); it has no column at (timestamptz); it has no column b (bytea); it has no "
    "column x (double precision)"
)


def test_a_part_that_is_read_twice_lands_once(database: str, db: psycopg.Connection) -> None:
    """A task of Spark is repeated if its executor is lost; what it had begun may go on. The first to end counts."""
    columns = (Column("id", 1, "integer", "int4", "int", key=True),)
    relation, place = Relation(1, "s", "t", "d", columns), Database.of(f"{database}&schema=lake")
    landing = PostgresLanding(place, "shop").begin(relation)
    parts = [landing.part(relation, name) for name in ("first", "first", "second")]
    for one, ids in zip(parts, ([1, 2], [1], [3]), strict=True):
        one.write(pa.record_batch([ids], schema=schema_of(columns)))
    for one in parts:
        one.close()
    landing.commit(relation, [], 3)
    assert db.execute("select id from lake.t order by 1").fetchall() == [(1,), (2,), (3,)]


def test_a_baseline_does_not_touch_what_others_made(
    task: Task, db: psycopg.Connection, spark: object
) -> None:
    db.execute("create schema lake; create table lake.t (mine int)")
    drain(task, spark)
    held = lifecycle.of_task(task.commands_path, {}).waiting
    assert list(held) == ["s.t"] and "did not make it" in held["s.t"].why
    assert db.execute("table lake.t").fetchall() == []


def test_what_others_made_is_found_before_a_run(task: Task, db: psycopg.Connection) -> None:
    """Under a mapping, too, whose columns are not looked at."""
    db.execute("create schema lake; create table lake.t (mine int); create table lake.u (mine int)")
    db.execute("insert into lake.u values (1)")
    file = Path(task.home).parent / "shop.yaml"
    file.write_text(file.read_text() + "tables: {s.bag: {target: s.u, drop: [d]}}\n")
    task = load(file)
    source = open_source(task)
    try:
        found = adoption_findings(task, ["s.t", "s.bag"], source.relation)
    finally:
        source.close()
    assert [(f.level, f.where, f.what.partition(", and it ")[2]) for f in found] == [
        ("error", "s.t", DIFFERS),
        ("error", "s.bag", "has rows"),
    ]
    db.execute("delete from lake.u")
    assert [f.where for f in adoption_findings(task, ["s.bag"], source.relation)] == []


def test_a_target_database_that_was_made_anew_has_none_of_the_tables(task: Task) -> None:
    """Nothing ends the transaction in which the tables are compared."""
    with hold_target(task, ["s.t", "s.bag"]) as held:
        assert held is not None and held.tables == {}
        with pytest.raises(ConfigError, match=r"s\.t is not in the target"):
            held.table("s.t")
