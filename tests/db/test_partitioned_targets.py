"""Targets that somebody made of partitions: what a partition refuses, though the table as such takes it."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.apply.targets.postgresql.place import Place, session
from tailrace.apply.targets.postgresql.progress import Progress
from tailrace.apply.targets.postgresql.refused import Trial, refuses
from tailrace.apply.targets.postgresql.stage import Staged
from tailrace.engine.columns import OPER, SEQ
from tailrace.engine.rules import Rules
from tailrace.model.change import Column, Relation

pytestmark = pytest.mark.db
ID = Column("id", 1, "integer", "int4", "int", key=True)
V = Column("v", 2, "text", "text", "string")
RELATION = Relation(1, "lake", "t", "d", (ID, V))
TARGET = '"lake"."t"'
ONE = "create table lake.t (id int primary key, v text)"
RANGES = f"{ONE} partition by range (id); create table lake.a partition of lake.t for values from (0) to (10)"
DEFAULT = f"{RANGES}; create table lake.b partition of lake.t default"
HASHES = f"{ONE} partition by hash (id)" + "".join(
    f"; create table lake.h{i} partition of lake.t for values with (modulus {m}, remainder {r})"
    for i, (m, r) in enumerate(((2, 0), (6, 1), (6, 3), (6, 5)))
)


@pytest.mark.parametrize(
    ("made", "may"),
    [
        (ONE, False),
        ("create table lake.t (id int, v text, primary key (id) include (v))", False),
        ("create table lake.t (id int, v text not null, primary key (id) include (v))", True),
        (RANGES, True),
        (DEFAULT, False),
        (f"{ONE} partition by range (id)", True),
        (HASHES, False),
        (f"{HASHES}; drop table lake.h2", True),
        (f"{DEFAULT}; alter table lake.b add check (id > 20)", True),
        (f"{DEFAULT}; alter table lake.b alter v set not null", True),
        (f"{DEFAULT}; create unique index on lake.a (v)", True),
        (f"{DEFAULT}; create index on lake.t (v)", False),
        (f"{DEFAULT}; create trigger x before insert on lake.b for each row execute function "
         "suppress_redundant_updates_trigger()", True),
        (f"{DEFAULT}; alter table lake.t detach partition lake.b; drop table lake.b; create table lake.b "
         "partition of lake.t default partition by list (id); create table lake.c partition of lake.b "
         "for values in (11)", True),
        (f"create table lake.all (id int, v text) partition by list (v); {ONE}; "
         "alter table lake.all attach partition lake.t for values in ('x')", True),
        (f"{ONE}; create table lake.child (check (id < 9)) inherits (lake.t)", True),
    ],
)  # fmt: skip
def test_whether_partitions_may_refuse_rows(
    database: str, db: psycopg.Connection, made: str, may: bool
) -> None:
    db.execute("create schema lake")
    db.execute(made.encode())
    place = Place(database)
    with session(place, "test") as on:
        assert refuses(on, place, TARGET, RELATION) == may


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("mode", ["strict", "archive"])
def test_a_row_that_fits_no_partition_is_set_aside(
    database: str, db: psycopg.Connection, mode: str, key: bool
) -> None:
    db.execute("create schema lake; create schema tailrace")
    db.execute((RANGES if key and mode == "strict" else RANGES.replace(" primary key", "")).encode())
    db.execute(f"create table tailrace.s (mark int, {SEQ} text, {OPER} text, c0 int, c1 text)".encode())
    for seq, number in enumerate((1, 10, 2)):
        db.execute("insert into tailrace.s values (1, %s, 'I', %s, 'x')", (str(seq), number))
    of = RELATION if key else RELATION.with_columns([Column("id", 1, "integer", "int4", "int"), V])
    place = Place(database)
    with session(place, "test") as on:
        staged = Staged('"tailrace"."s"', (1,), 3, (SEQ, OPER), 2)
        trial = Trial(on, place, Progress(place, "test"), staged, of, Rules.of(mode), "trial")
        assert trial.run() == 1
        told = on.execute(f"select seq, oper, why from {trial.into}".encode()).fetchall()
    assert told == [("1", "I", 'no partition of relation "t" found for row')]
    assert db.execute("table lake.t").fetchall() == []
