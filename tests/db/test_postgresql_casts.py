"""Statements that bring texts into columns of other types: by key, partly, anew, as bags, and one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from tailrace.apply.targets.postgresql.place import Place, session
from tailrace.apply.targets.postgresql.progress import Progress
from tailrace.apply.targets.postgresql.refused import Trial
from tailrace.apply.targets.postgresql.stage import EXTRA_SQL, Staged
from tailrace.apply.targets.postgresql.types import as_text, casts
from tailrace.apply.targets.postgresql.write import StagedWriter
from tailrace.engine.columns import ADD, KEPT, OP, OPER, SEQ, TAKE
from tailrace.engine.rules import Rules
from tailrace.model.change import Column, Relation
from tailrace.sources.postgresql.connect import Session, quoted

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
A, B, C, D, E = (f"00000000-0000-0000-0000-00000000000{n}" for n in "abcde")


@pytest.fixture
def on(database: str, db: psycopg.Connection) -> Iterator[Session]:
    db.execute("create schema lake; create schema tailrace")
    db.execute("create table lake.t (id uuid primary key, j jsonb, c char(4), n numeric)")
    db.execute(f"insert into lake.t values ('{A}', '{{\"a\": 1}}', 'x', 1.50), ('{B}', '[1, 2]', 'yy', null)")
    with session(Place(database), "test") as made:
        yield made


def staged(on: Session, extra: tuple[str, ...], *rows: tuple[object, ...], of: Relation = KEYED) -> Staged:
    """Rows as tasks stage them: extra cells, then texts."""
    columns = [f"{quoted(n)} {EXTRA_SQL[n]}" for n in extra] + [f"c{i} text" for i in range(4)]
    on.execute(f"create table tailrace.stage (mark bigint, {', '.join(columns)})".encode())
    for row in rows:
        on.execute(f"insert into tailrace.stage values (1{', %s' * len(row)})".encode(), row)
    into = casts(on, TARGET, of.columns)
    return Staged('"tailrace"."stage"', (1,), len(rows), extra, 4, into)


def content(on: Session) -> list[tuple[object, ...]]:
    return on.execute(
        "select right(id::text, 1), j::text, c::text, n::text from lake.t order by id, n"
    ).fetchall()


def test_rows_by_key(on: Session) -> None:
    rows = staged(on, (OP, KEPT), ("D", None, A, None, None, None), ("U", "1100", B, None, "z", "NaN"),
                  ("U", None, C, "{}", "neww", "1e3"))  # fmt: skip
    to = StagedWriter(on, TARGET, KEYED, rows)
    assert (to.delete(), to.update_partly(), to.upsert(partial=True)) == (1, 1, (1, 0))
    assert content(on) == [("b", "[1, 2]", "z", "NaN"), ("c", "{}", "neww", "1000")]
    with on.transaction():
        assert to.anew(partial=True) == (0, 2, 0)
    assert content(on) == [("b", "[1, 2]", "z", "NaN"), ("c", "{}", "neww", "1000")]


@pytest.mark.parametrize("kept", ["01", None])
def test_a_key_that_gets_another_text_keeps_its_row(on: Session, kept: str | None) -> None:
    on.execute(b"create table lake.k (n numeric primary key, v text, note text)")
    on.execute(b"insert into lake.k values (1.0, 'large', 'theirs'), (2.0, 'b', 'theirs')")
    on.execute(f"create table tailrace.k_s (mark int, {OP} text, {KEPT} text, c0 text, c1 text)".encode())
    rows = [("U", kept, "1.0", "new"), ("D", None, "1.00", None), ("D", None, "2.00", None)]
    for row in rows:
        on.execute(b"insert into tailrace.k_s values (1, %s, %s, %s, %s)", row)
    of = Relation(2, "lake", "k", "d", (Column("n", 1, "numeric", "numeric", "string", key=True),
                                        Column("v", 2, "text", "text", "string")))  # fmt: skip
    to = StagedWriter(
        on, '"lake"."k"', of, Staged('"tailrace"."k_s"', (1,), 3, (OP, KEPT), 2, {0: "numeric"})
    )
    assert to.delete() == 1
    partly = to.update_partly()
    assert partly + sum(to.upsert(partial=True)) == 1
    told = on.execute(b"select n::text, v, note from lake.k").fetchall()
    assert told == [("1.0", "large" if kept else "new", "theirs")]


LOOSE = "create collation lake.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
"""A and a are equal."""


@pytest.fixture
def loose(on: Session) -> None:
    """A collation under which texts that differ are equal; the wheel's server has no ICU."""
    try:
        on.execute(LOOSE.encode())
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server has no ICU: TAILRACE_PG_BIN=/usr/lib/postgresql/15/bin, say")


@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize("kind", ["text", "varchar(9)", "char(3)"])
@pytest.mark.parametrize("kept", ["01", None])
def test_a_key_that_gets_another_text_of_its_collation_keeps_its_row(
    on: Session, kind: str, kept: str | None
) -> None:
    on.execute(f"create table lake.k (k {kind} collate lake.ci primary key, v text, note text)".encode())
    on.execute(b"insert into lake.k values ('abc', 'large', 'theirs'), ('b', 'b', 'theirs')")
    on.execute(f"create table tailrace.k_s (mark int, {OP} text, {KEPT} text, c0 text, c1 text)".encode())
    for row in [("U", kept, "Abc", "new"), ("D", None, "ABC", None), ("D", None, "B", None)]:
        on.execute(b"insert into tailrace.k_s values (1, %s, %s, %s, %s)", row)
    of = Relation(2, "lake", "k", "d", (Column("k", 1, kind, "text", "string", key=True),
                                        Column("v", 2, "text", "text", "string")))  # fmt: skip
    into = casts(on, '"lake"."k"', of.columns)
    to = StagedWriter(on, '"lake"."k"', of, Staged('"tailrace"."k_s"', (1,), 3, (OP, KEPT), 2, into))
    assert to.delete() == 1
    partly = to.update_partly()
    assert partly + sum(to.upsert(partial=True)) == 1
    told = on.execute(b"select k::text, v, note from lake.k").fetchall()
    assert told == [("Abc", "large" if kept else "new", "theirs")]


@pytest.mark.usefixtures("loose")
def test_copies_are_of_one_text_whatever_the_collation(on: Session) -> None:
    on.execute("create table lake.b (v text collate lake.ci, w text[] collate lake.ci)")
    on.execute("insert into lake.b values ('abc', '{x}'), ('ABC', '{x}'), ('abc', '{x}'), ('abc', '{X}')")
    on.execute(f"create table tailrace.b_s (mark int, {TAKE} int, {ADD} int, c0 text, c1 text[])".encode())
    on.execute(b"insert into tailrace.b_s values (1, 2, 0, 'abc', '{x}')")
    of = Relation(2, "lake", "b", "f", (Column("v", 1, "text", "text", "string"),
                                        Column("w", 2, "text[]", "array", "array<string>")))  # fmt: skip
    into = casts(on, '"lake"."b"', of.columns)
    to = StagedWriter(on, '"lake"."b"', of, Staged('"tailrace"."b_s"', (1,), 1, (TAKE, ADD), 2, into))
    assert to.take_copies() == 2
    assert on.execute(b'select v, w from lake.b order by v collate "C"').fetchall() == [
        ("ABC", ["x"]),
        ("abc", ["X"]),
    ]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("old", "new"), [("0", "-0"), ("-0", "0")])
@pytest.mark.parametrize(("kind", "lake"), [("real", "float"), ("double precision", "double")])
def test_a_key_that_is_zero_gets_its_new_sign(
    on: Session, kind: str, lake: str, old: str, new: str, sparse: bool
) -> None:
    on.execute(f"create table lake.f (id {kind} primary key, n int); create table tailrace.f_s (mark int, "
               f"{OP} text, {KEPT} text, c0 {kind}, c1 int)".encode())  # fmt: skip
    on.execute("insert into lake.f values (%s, 1)", (old,))
    on.execute("insert into tailrace.f_s values (1, 'U', %s, %s, 2)", ("01" if sparse else None, new))
    of = Relation(2, "lake", "f", "d", (Column("id", 1, kind, kind, lake, key=True), N))
    to = StagedWriter(on, '"lake"."f"', of, Staged('"tailrace"."f_s"', (1,), 1, (OP, KEPT), 2, {}))
    changed = (to.update_partly(), *to.upsert(partial=True)) if sparse else to.upsert(partial=False)
    assert changed == ((1, 0, 0) if sparse else (0, 1))
    rows = on.execute("select id::text, n from lake.f").fetchall()
    assert rows == [(new, 1 if sparse else 2)]


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize(
    "added",
    [
        "nr int generated always as identity",
        "x text not null default 'new'",
        "n7 int not null default 7 check (n7 > n)",
    ],
)
def test_columns_that_others_added_are_left_to_their_defaults(
    on: Session, database: str, added: str, key: bool
) -> None:
    on.execute(f"alter table lake.t add {added}".encode())
    of = KEYED if key else KEYED.with_columns([replace(ID, key=False), *MORE])
    rows = staged(on, (SEQ, OPER), ("1", "I", C, "[]", "new", "1"), ("2", "D", B, "[1, 2]", "yy", None))
    place = Place(database)
    assert Trial(on, place, Progress(place, "test"), rows, of, Rules.of("upsert"), "trial").run() == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("inet", "1.2.3.4"), ("inet", "::1"), ("inet", "10.0.0.0/8"), ("cidr", "10.0.0.0/8"), ("cidr", "1.2.3.4/32"),
        ("character(4)", "a   "), ("bit(3)", "101"), ("interval", "1 mon -00:00:01"), ("numeric", "1.50"),
        ("macaddr8", "08:00:2b:01:02:03:04:05"), ("jsonb", '{"a": 1}'), ("json", '{"a":  1}'), ("tsvector", "'a':1"),
        ("point", "(1,2)"), ("inet[]", "{1.2.3.4,::1/64}"), ("numrange", "[1.0,2)"), ("pg_lsn", "0/1F"),
        ("time with time zone", "01:02:03+05:30"), ("uuid", A),
    ],
)  # fmt: skip
def test_a_value_of_a_target_is_the_text_that_the_source_sends(on: Session, kind: str, value: str) -> None:
    on.execute(f"create table lake.v (v {kind})".encode())
    on.execute("insert into lake.v values (%s)", (value,))
    into = casts(on, '"lake"."v"', [Column("v", 1, kind, "", "string")])
    query = f"select {as_text('v', 'string', into[0])}, concat(v) from lake.v"
    assert on.execute(query.encode()).fetchall() == [(value, value)]


def test_what_others_added_stays_while_unique_values_pass_between_rows(on: Session) -> None:
    on.execute("alter table lake.t add unique (c)")
    on.execute(
        "alter table lake.t add x text default 'new', add g int generated always as (length(c)) stored"
    )
    on.execute("alter table lake.t add nr int generated always as identity (start 7)")
    on.execute("update lake.t set x = 'mine'")
    rows = staged(on, (OP,), ("U", A, "{}", "yy", "1"), ("U", B, "{}", "x", "2"), ("U", C, "{}", "z", "3"))
    to = StagedWriter(on, TARGET, KEYED, rows)
    with on.transaction():
        assert to.anew(partial=False) == (1, 2, 0)
    made = on.execute("select right(id::text, 1), c::text, x, nr from lake.t order by id").fetchall()
    assert made == [("a", "yy", "mine", 7), ("b", "x", "mine", 8), ("c", "z", "new", 9)]


@pytest.mark.parametrize(
    ("action", "followed"),
    [("cascade", True), ("set null", True), ("set default", True), ("no action", False)],
)
def test_rows_of_other_tables_that_go_with_those_of_a_target(
    on: Session, action: str, followed: bool
) -> None:
    to = StagedWriter(on, TARGET, KEYED, staged(on, (OP,)))
    assert not to.followed
    on.execute(f"create table lake.note (id uuid references lake.t on delete {action})".encode())
    assert to.followed == followed


def test_a_deferred_reference_of_a_table_to_itself_waits_for_the_transaction(
    on: Session, database: str
) -> None:
    on.execute("alter table lake.t add up uuid references lake.t deferrable initially deferred")
    of = KEYED.with_columns([ID, *MORE[:2], Column("up", 5, "uuid", "uuid", "string")])
    rows = staged(on, (SEQ, OPER), ("1", "I", C, "[]", "new", C), ("2", "I", D, "[]", "new", E),
                  ("3", "I", E, "[]", "new", None), ("4", "D", D, "[]", "new", E), of=of)  # fmt: skip
    place = Place(database)
    assert Trial(on, place, Progress(place, "test"), rows, of, Rules.of("upsert"), "trial").run() == 0


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
    to = StagedWriter(on, TARGET, KEYED, rows)
    assert (to.delete(), to.upsert(partial=False)) == (1, (1, 1))
    assert content(on) == [("b", "[3]", "z", "NaN"), ("c", "{}", "neww", "1000")]


def test_copies_of_one_partition_leave_those_of_others(on: Session) -> None:
    partitioned(on)
    bag = KEYED.with_columns([Column("id", 1, "uuid", "uuid", "string"), *MORE])
    rows = staged(on, (TAKE, ADD), (1, 0, A, '{"a": 1}', "x   ", "1.50"))
    assert StagedWriter(on, TARGET, bag, rows).take_copies() == 1
    assert content(on) == [("b", "[1, 2]", "yy", None)]


def test_a_change_of_one_partition_leaves_rows_of_others(on: Session, database: str) -> None:
    partitioned(on, "unique")
    bag = KEYED.with_columns([Column("id", 1, "uuid", "uuid", "string"), *MORE])
    rows = staged(on, (SEQ, OPER), ("1", "D", A, '{"a": 1}', "x", "1.50"), ("2", "I", B, "[]", "new", "13"))
    place = Place(database)
    trial = Trial(on, place, Progress(place, "test"), rows, bag, Rules.of("upsert"), "trial")
    assert trial.run() == 1
    assert [r[0] for r in on.execute("select seq from tailrace.trial_bad").fetchall()] == ["2"]


def test_a_text_that_is_too_long_is_refused_and_not_cut(on: Session) -> None:
    to = StagedWriter(on, TARGET, KEYED, staged(on, (OP,), ("U", C, "1", "fiver", "1")))
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        to.upsert(partial=False)


def test_copies_of_rows_without_a_key(on: Session) -> None:
    on.execute("alter table lake.t drop constraint t_pkey")
    bag = KEYED.with_columns([Column("id", 1, "uuid", "uuid", "string"), *MORE])
    rows = staged(on, (TAKE, ADD), (1, 0, A, '{"a": 1}', "x   ", "1.50"), (2, 0, B, "[1, 2]", "yy  ", None),
                  (0, 2, C, "null", "ab", "2.0"))  # fmt: skip
    to = StagedWriter(on, TARGET, bag, rows)
    assert (to.copies_to_take(), to.take_copies(), to.add_copies()) == (3, 2, 2)
    assert content(on) == [("c", "null", "ab", "2.0")] * 2


def test_changes_one_by_one(on: Session, database: str) -> None:
    """A CHECK of others refuses one change; those before and behind it are tried with what good ones left."""
    on.execute("alter table lake.t add check (n <> 13)")
    rows = staged(on, (SEQ, OPER), ("1", "B", A, '{"a": 1}', "x", "1.50"), ("1", "U", C, '{"a": 2}', "x", "2"),
                  ("2", "I", A, "[]", "new", "13"), ("3", "D", B, "[1, 2]", "yy", None))  # fmt: skip
    place = Place(database)
    trial = Trial(on, place, Progress(place, "test"), rows, KEYED, Rules.of("upsert"), "trial")
    assert trial.run() == 1
    assert [r[0] for r in on.execute("select seq from tailrace.trial_bad").fetchall()] == ["2"]
    assert [r[0] for r in content(on)] == ["a", "b"]
