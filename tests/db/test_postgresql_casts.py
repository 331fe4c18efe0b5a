"""Statements that bring texts into columns of other types: by key, partly, and as copies of rows."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tailrace.engine.columns import ADD, KEPT, OP, TAKE
from tailrace.model.change import Column, Relation
from tailrace.sources.postgresql.connect import Session, quoted
from tailrace.targets.postgresql.connection import Database, open_session
from tailrace.targets.postgresql.staging import StagingTable
from tailrace.targets.postgresql.statements import MergeStatements
from tailrace.targets.postgresql.types import TargetTypes, as_text

pytestmark = pytest.mark.db
ID = Column("id", 1, "uuid", "uuid", "string", key=True)
MORE = (
    Column("j", 2, "jsonb", "jsonb", "string"),
    Column("c", 3, "character(4)", "bpchar", "string"),
    Column("n", 4, "numeric", "numeric", "string"),
)
N = Column("n", 2, "integer", "int4", "int")
KEYED = Relation(1, "lake", "t", "f", (ID, *MORE))
TARGET = '"lake"."t"'
A, B, C = (f"00000000-0000-0000-0000-00000000000{n}" for n in "abc")


@pytest.fixture
def on(database: str, db: psycopg.Connection) -> Iterator[Session]:
    db.execute("create schema lake; create schema tailrace")
    db.execute("create table lake.t (id uuid primary key, j jsonb, c char(4), n numeric)")
    db.execute(f"insert into lake.t values ('{A}', '{{\"a\": 1}}', 'x', 1.50), ('{B}', '[1, 2]', 'yy', null)")
    with open_session(Database(database), "test") as made:
        yield made


def staged(
    on: Session, extra: tuple[str, ...], *rows: tuple[object, ...], of: Relation = KEYED
) -> StagingTable:
    """Rows as tasks stage them: extra cells, then texts."""
    kinds = {OP: '"char"', KEPT: "text", TAKE: "bigint", ADD: "bigint"}
    columns = [f"{quoted(n)} {kinds[n]}" for n in extra] + [f"c{i} text" for i in range(4)]
    on.execute(f"create table tailrace.stage ({', '.join(columns)})".encode())
    for row in rows:
        on.execute(f"insert into tailrace.stage values ({', '.join(['%s'] * len(row))})".encode(), row)
    return StagingTable('"tailrace"."stage"', extra, 4, TargetTypes.of(on, TARGET, of.columns).casts)


def upserted(to: MergeStatements, *, partial: bool) -> None:
    """What a batch does with staged rows by key."""
    to.delete()
    if partial:
        to.update_partly()
    to.upsert(partial=partial)


def content(on: Session) -> list[tuple[object, ...]]:
    return on.execute(
        "select right(id::text, 1), j::text, c::text, n::text from lake.t order by id, n"
    ).fetchall()


def test_rows_by_key(on: Session) -> None:
    rows = staged(on, (OP, KEPT), ("D", None, A, None, None, None), ("U", "1100", B, None, "z", "NaN"),
                  ("U", None, C, "{}", "neww", "1e3"))  # fmt: skip
    to = MergeStatements(on, TARGET, KEYED, rows)
    upserted(to, partial=True)
    assert content(on) == [("b", "[1, 2]", "z", "NaN"), ("c", "{}", "neww", "1000")]


@pytest.mark.parametrize("kept", ["01", None])
def test_a_key_that_gets_another_text_keeps_its_row(on: Session, kept: str | None) -> None:
    on.execute(b"create table lake.k (n numeric primary key, v text, note text)")
    on.execute(b"insert into lake.k values (1.0, 'large', 'theirs'), (2.0, 'b', 'theirs')")
    on.execute(f"create table tailrace.k_s ({OP} text, {KEPT} text, c0 text, c1 text)".encode())
    rows = [("U", kept, "1.0", "new"), ("D", None, "1.00", None), ("D", None, "2.00", None)]
    for row in rows:
        on.execute(b"insert into tailrace.k_s values (%s, %s, %s, %s)", row)
    of = Relation(2, "lake", "k", "d", (Column("n", 1, "numeric", "numeric", "string", key=True),
                                        Column("v", 2, "text", "text", "string")))  # fmt: skip
    to = MergeStatements(
        on, '"lake"."k"', of, StagingTable('"tailrace"."k_s"', (OP, KEPT), 2, {0: "numeric"})
    )
    upserted(to, partial=True)
    told = on.execute(b"select n::text, v, note from lake.k").fetchall()
    assert told == [("1.0", "large" if kept else "new", "theirs")]


@pytest.mark.parametrize(
    ("kind", "lake", "old", "new", "sparse"),
    [("real", "float", "0", "-0", False), ("double precision", "double", "-0", "0", True)],
)
def test_a_key_that_is_zero_gets_its_new_sign(
    on: Session, kind: str, lake: str, old: str, new: str, sparse: bool
) -> None:
    on.execute(f"create table lake.f (id {kind} primary key, n int); create table tailrace.f_s ("
               f"{OP} text, {KEPT} text, c0 {kind}, c1 int)".encode())  # fmt: skip
    on.execute("insert into lake.f values (%s, 1)", (old,))
    on.execute("insert into tailrace.f_s values ('U', %s, %s, 2)", ("01" if sparse else None, new))
    of = Relation(2, "lake", "f", "d", (Column("id", 1, kind, kind, lake, key=True), N))
    to = MergeStatements(on, '"lake"."f"', of, StagingTable('"tailrace"."f_s"', (OP, KEPT), 2, {}))
    upserted(to, partial=sparse)
    rows = on.execute("select id::text, n from lake.f").fetchall()
    assert rows == [(new, 1 if sparse else 2)]


VALUES = [
    ("inet", "1.2.3.4"), ("inet", "::1"), ("inet", "10.0.0.0/8"), ("cidr", "10.0.0.0/8"), ("cidr", "1.2.3.4/32"),
    ("character(4)", "a   "), ("bit(3)", "101"), ("interval", "1 mon -00:00:01"), ("numeric", "1.50"),
    ("macaddr8", "08:00:2b:01:02:03:04:05"), ("jsonb", '{"a": 1}'), ("json", '{"a":  1}'), ("tsvector", "'a':1"),
    ("point", "(1,2)"), ("inet[]", "{1.2.3.4,::1/64}"), ("numrange", "[1.0,2)"), ("pg_lsn", "0/1F"),
    ("time with time zone", "01:02:03+05:30"), ("uuid", A),
]  # fmt: skip


def test_a_value_of_a_target_is_the_text_that_the_source_sends(on: Session) -> None:
    columns = [Column(f"v{n}", n + 1, kind, "", "string") for n, (kind, _) in enumerate(VALUES)]
    on.execute(f"create table lake.v ({', '.join(f'{c.name} {c.source_type}' for c in columns)})".encode())
    values = [value for _, value in VALUES]
    on.execute(f"insert into lake.v values ({', '.join(['%s'] * len(values))})".encode(), values)
    into = TargetTypes.of(on, '"lake"."v"', columns).casts
    texts = [as_text(c.name, "string", into[n]) for n, c in enumerate(columns)]
    concats = [f"concat({c.name})" for c in columns]
    for form in (texts, concats):
        assert on.execute(f"select {', '.join(form)} from lake.v".encode()).fetchall() == [tuple(values)]


def partitioned(on: Session, key: str = "") -> None:
    """Makes the target of one partition a row, all of them at the first place of theirs."""
    on.execute("alter table lake.t rename to was")
    on.execute(
        f"create table lake.t (id uuid {key}, j jsonb, c char(4), n numeric) partition by list (id)".encode()
    )
    for n, one in enumerate((A, B, C)):
        on.execute(f"create table lake.t{n} partition of lake.t for values in ('{one}')".encode())
    on.execute("insert into lake.t select * from lake.was")


def test_rows_of_partitions_by_key(on: Session) -> None:
    partitioned(on, "primary key")
    rows = staged(on, (OP, KEPT), ("D", None, A, None, None, None), ("U", None, B, "[3]", "z", "NaN"),
                  ("U", None, C, "{}", "neww", "1e3"))  # fmt: skip
    upserted(MergeStatements(on, TARGET, KEYED, rows), partial=False)
    assert content(on) == [("b", "[3]", "z", "NaN"), ("c", "{}", "neww", "1000")]


def test_copies_of_one_partition_leave_those_of_others(on: Session) -> None:
    partitioned(on)
    bag = KEYED.with_columns([Column("id", 1, "uuid", "uuid", "string"), *MORE])
    rows = staged(on, (TAKE, ADD), (1, 0, A, '{"a": 1}', "x   ", "1.50"))
    MergeStatements(on, TARGET, bag, rows).take_copies()
    assert content(on) == [("b", "[1, 2]", "yy", None)]


def test_a_text_that_is_too_long_is_refused_and_not_cut(on: Session) -> None:
    to = MergeStatements(on, TARGET, KEYED, staged(on, (OP,), ("U", C, "1", "fiver", "1")))
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        to.upsert(partial=False)


def test_copies_of_rows_without_a_key(on: Session) -> None:
    on.execute("alter table lake.t drop constraint t_pkey")
    bag = KEYED.with_columns([Column("id", 1, "uuid", "uuid", "string"), *MORE])
    rows = staged(on, (TAKE, ADD), (1, 0, A, '{"a": 1}', "x   ", "1.50"), (2, 0, B, "[1, 2]", "yy  ", None),
                  (0, 2, C, "null", "ab", "2.0"))  # fmt: skip
    to = MergeStatements(on, TARGET, bag, rows)
    to.take_copies()
    to.add_copies()
    assert content(on) == [("c", "null", "ab", "2.0")] * 2
