"""Layouts on a real server: DDL in mid-stream, types, partitions, generated columns, lagging catalogs."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.errors import ConfigError, SourceError
from tailrace.model.change import Relation
from tailrace.sources.postgresql import column_identity
from tailrace.sources.postgresql.layout import UNKNOWN_VALUE, retyped

from .reading import Make, layouts, read_all, table_of

pytestmark = pytest.mark.db


def columns(relation: Relation) -> list[tuple[str, int, str]]:
    return [(c.name, c.attnum, c.type) for c in relation.columns]


def test_ddl_in_mid_stream(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key, x int, v varchar(5))")
    source = make()
    source.prepare(["public.a"])
    first = source.relation("public.a")
    source.start(None, [first])
    seen: list[Relation] = []
    for ddl in (
        "select 1",
        "alter table a add n numeric(10,2)",
        "alter table a drop x",
        "alter table a rename v to w",
        "alter table a alter w type text, alter n type numeric(20,2)",
        "alter table a add x text",
    ):
        db.execute(ddl)
        db.execute("insert into a (id) select coalesce(max(id), 0) + 1 from a")
        seen += layouts(read_all(source), first, *seen)
    assert [columns(r) for r in seen] == [
        [("id", 1, "int"), ("x", 2, "int"), ("v", 3, "string"), ("n", 4, "decimal(10,2)")],
        [("id", 1, "int"), ("v", 3, "string"), ("n", 4, "decimal(10,2)")],
        [("id", 1, "int"), ("w", 3, "string"), ("n", 4, "decimal(10,2)")],
        [("id", 1, "int"), ("w", 3, "string"), ("n", 4, "decimal(20,2)")],
        [("id", 1, "int"), ("w", 3, "string"), ("n", 4, "decimal(20,2)"), ("x", 5, "string")],
    ]
    assert seen[-1] == source.relation("public.a")


def test_a_stream_that_lags_behind_the_catalog(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key, x int, v text)")
    source = make()
    source.prepare(["public.a"])
    known = source.relation("public.a")
    for ddl in (
        "alter table a rename v to w",
        "alter table a drop x",
        "alter table a rename w to v2",
        "alter table a add x text",
        "alter table a rename x to v",
    ):
        db.execute("insert into a (id) select coalesce(max(id), 0) + 1 from a")
        db.execute(ddl)
    db.execute("insert into a (id) select coalesce(max(id), 0) + 1 from a")
    source.start(None, [known])
    assert [[(n, a) for n, a, _ in columns(r)] for r in layouts(read_all(source), known)] == [
        [("id", 1), ("x", 2), ("w", 3)],
        [("id", 1), ("w", 3)],
        [("id", 1), ("v2", 3)],
        [("id", 1), ("v2", 3), ("x", 4)],
        [("id", 1), ("v2", 3), ("v", 4)],
    ]


def test_a_table_that_is_gone_when_its_changes_are_read(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key, v text)")
    source = make()
    source.prepare(["public.a"])
    db.execute("insert into a values (1, 'x')")
    db.execute("drop table a")
    source.start(None, [])
    assert [(r.table, columns(r), r.key) for r in layouts(read_all(source))] == [
        ("public.a", [("id", -1, "int"), ("v", -2, "string")], ["id"])  # no number can be proved any more
    ]
    with pytest.raises(SourceError, match=r"no table public\.a"):
        source.relation("public.a")


def test_values_of_rows_older_than_a_column(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    db.execute("insert into a values (1)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    db.execute(
        """alter table a add t text default 'x "y" {,} é\\', add e text default '',
        add i int[] default '{1,2}',
        add p box default '((1,2),(0,0))', add z timestamptz default '2020-01-01 00:00+02', add n int"""
    )
    db.execute("insert into a values (2)")
    (relation,) = layouts(read_all(source))
    assert {c.name: c.missing for c in relation.columns} == {
        "id": None,
        "t": 'x "y" {,} é\\',
        "e": "",
        "i": "{1,2}",
        "p": "(1,2),(0,0)",
        "z": "2019-12-31 22:00:00+00",
        "n": None,
    }


def test_types(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        """
        create schema s; create type s.mood as enum ('sad', 'ok'); create type s.pair as (a int, b text);
        create domain s.money as numeric(12,2); create domain s.price as s.money;
        create domain s.tags as text[]; create type s.span as range (subtype = int4);
        create table s.all (id int primary key, m s.mood, c s.pair, d s.price, t s.tags, r s.span,
          mr int4multirange, a int[], f numeric, w numeric(50,2), c5 char(5), at timestamptz(3))
        """
    )
    source = make(types={"s.all.f": "decimal(38,6)"})
    source.prepare(["s.all"])
    source.start(None, [])
    db.execute("insert into s.all (id) values (1)")
    (relation,) = layouts(read_all(source))
    assert [(c.name, c.source_type, c.kind, c.type) for c in relation.columns] == [
        ("id", "integer", "int4", "int"),
        ("m", "s.mood", "enum", "string"),
        ("c", "s.pair", "composite", "string"),
        ("d", "s.price", "numeric", "decimal(12,2)"),
        ("t", "s.tags", "array", "string"),
        ("r", "s.span", "range", "string"),
        ("mr", "int4multirange", "multirange", "string"),
        ("a", "integer[]", "array", "string"),
        ("f", "numeric", "numeric", "decimal(38,6)"),
        ("w", "numeric(50,2)", "numeric", "string"),
        ("c5", "character(5)", "bpchar", "string"),
        ("at", "timestamp(3) with time zone", "timestamptz", "timestamp"),
    ]
    assert relation.column("w").note and not relation.column("f").note
    assert relation == source.relation("s.all")


def test_partitions_come_under_their_root(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        """
        create table p (id int, day date, v text, primary key (id, day)) partition by range (day);
        create table p1 partition of p for values from ('2026-01-01') to ('2026-02-01');
        create table p2 (v text, junk int, id int not null, day date not null);
        alter table p2 drop junk;
        alter table p attach partition p2 for values from ('2026-02-01') to ('2026-03-01')
        """
    )
    source = make()
    assert source.tables(["public.*"]) == ["public.p"]
    source.prepare(["public.p"])
    source.start(None, [])
    db.execute("insert into p values (1, '2026-01-05', 'a'), (2, '2026-02-05', 'b')")
    db.execute("update p set day = '2026-02-06' where id = 1")
    chunks = read_all(source)
    (relation,) = layouts(chunks)
    assert (relation.table, relation.key) == ("public.p", ["id", "day"])
    assert columns(relation) == [("id", 1, "int"), ("day", 2, "date"), ("v", 3, "string")]
    assert relation == source.relation("public.p")
    assert set(table_of(chunks)["RELID"].to_pylist()) == {0, relation.relid}
    assert table_of(chunks)["RECID"].to_pylist() == [7, 1, 1, 12, 7, 4, 1, 12]


def test_generated_columns_follow_the_publication(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        "create table g (id int primary key, a int, twice int generated always as (a * 2) stored, z text)"
    )
    source = make()
    source.prepare(["public.g"])
    source.start(None, [])
    db.execute("insert into g (id, a) values (1, 2)")
    (relation,) = layouts(read_all(source))
    stored = [("twice", 3, "int")] if db.info.server_version >= 180000 else []
    assert columns(relation) == [("id", 1, "int"), ("a", 2, "int"), *stored, ("z", 4, "string")]
    assert relation == source.relation("public.g")
    if stored:
        db.execute("alter publication tailrace_test set (publish_generated_columns = none)")
        db.execute("insert into g (id, a) values (2, 2)")
        (relation,) = layouts(read_all(source))
        assert columns(relation) == [("id", 1, "int"), ("a", 2, "int"), ("z", 4, "string")]
        assert relation == source.relation("public.g")


def test_full_identity_beside_a_generated_column_stays_writable(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table g (id int primary key, a int, twice int generated always as (a * 2) stored)")
    db.execute("alter table g replica identity full")
    make().prepare(["public.g"])
    db.execute("insert into g (id, a) values (1, 2)")
    db.execute("update g set a = 3")
    db.execute("delete from g")


@pytest.mark.since(15)
def test_column_lists_of_the_publication(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table c (id int primary key, secret text, v text)")
    db.execute(
        "create publication tailrace_test for table c (id, v) with (publish_via_partition_root = true)"
    )
    source = make()
    source.prepare(["public.c"])
    source.start(None, [])
    db.execute("insert into c values (1, 's', 'v')")
    (relation,) = layouts(read_all(source))
    assert columns(relation) == [("id", 1, "int"), ("v", 3, "string")]
    assert relation == source.relation("public.c")


@pytest.mark.parametrize("identity", ["default", "using index a_covers", "full"])
def test_columns_that_an_index_only_includes_are_no_part_of_the_key(
    db: psycopg.Connection, make: Make, identity: str
) -> None:
    db.execute("create table a (v text, id int not null, n int not null, primary key (id) include (v))")
    db.execute("create unique index a_covers on a (n) include (id)")
    db.execute(f"alter table a replica identity {identity}")
    source = make()
    source.prepare(["public.a"])
    first = source.relation("public.a")
    source.start(None, [first])
    db.execute("insert into a (id, n) values (1, 2)")
    told = [relation for chunk in read_all(source) for _, relation in chunk.relations]
    assert [r.key for r in (first, *told)] == [["n" if "index" in identity else "id"]] * 2


def test_tables_by_pattern(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        """
        create schema shop; create table shop.orders (id int); create table shop.lines (id int);
        create table shop.orders_old (id int); create table public.x (id int); create view shop.v as select 1;
        create unlogged table shop.fast (id int); create table shop."Odd Name" (id int)
        """
    )
    source = make()
    assert source.tables(["shop.*"]) == ["shop.Odd Name", "shop.lines", "shop.orders", "shop.orders_old"]
    assert source.tables(["shop.orders*", "public.x"], exclude=["*_old"]) == ["public.x", "shop.orders"]
    assert source.tables(["shop.v", "shop.fast"]) == ["shop.fast", "shop.v"]
    db.execute('create schema "we.ird"; create table "we.ird".orders (id int primary key)')
    assert source.tables(["*.orders", "we.ird.*"]) == ["shop.orders"]  # names are schema.table
    with pytest.raises(ConfigError, match=r"no table shop\.order") as error:
        source.tables(["shop.order"])
    assert "shop.orders" in (error.value.hint or "")


def test_columns_of_layouts_that_the_catalog_is_long_past(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    known = source.relation("public.a")
    for ddl in (
        "add a int",
        "add n numeric(8,2) default 7.25",
        "drop a, add b int default 42",
        "rename n to m",
        "add d text not null default 'dé'",
    ):
        db.execute(f"alter table a {ddl}")
        db.execute("insert into a (id) select coalesce(max(id), 0) + 1 from a")
    source.start(None, [known])
    assert [[(c.name, c.attnum, c.missing) for c in r.columns[1:]] for r in layouts(read_all(source))] == [
        [("a", 2, None)],
        [("a", 2, None), ("n", 3, "7.25")],
        [("n", 3, "7.25"), ("b", 4, "42")],
        [("m", 3, "7.25"), ("b", 4, "42")],
        [("m", 3, "7.25"), ("b", 4, "42"), ("d", 5, "dé")],
    ]


def test_a_column_made_again(
    db: psycopg.Connection, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(column_identity, "EVERY_S", 0.0)
    db.execute("create table a (id int primary key, v text)")
    source = make()
    source.prepare(["public.a"])
    known = [source.relation("public.a")]
    source.start(None, known)

    def told() -> list[list[tuple[str, int, str | None]]]:
        db.execute("insert into a (id) select coalesce(max(id), 0) + 1 from a")
        new = layouts(read_all(source), *known)
        known.extend(new)
        return [[(c.name, c.attnum, c.missing) for c in r.columns[1:]] for r in new]

    assert told() == []
    db.execute("alter table a drop v, add v text default 'x'")
    read_all(source)  # capture is there, and sees it in the catalog before the next change
    assert told() == [[("v", 3, "x")]]
    db.execute("alter table a add n int default 5, alter v type varchar")  # the table stays as it is
    assert told() == [[("v", 3, "x"), ("n", 4, "5")]]
    with db.transaction():  # nobody sees what was before the change, and what after
        db.execute("alter table a drop v, add w text default 'y', drop n")
        db.execute("insert into a (id) values (100)")
    assert told() == [[("w", -1, None)], [("w", 5, None)]]
    assert "the identity of this column in the source cannot be determined" in caplog.text
    db.execute("alter table a add r float default random()")
    assert told() == [[("w", 5, None), ("r", 6, None)]]  # volatile: each row has another value
    assert [r.args[1] for r in caplog.records] == ["w", "w", "r"]


@pytest.mark.parametrize(
    ("change", "may_differ"),
    [("n type bigint using n * 100", True), ("v type varchar(9)", False)],
    ids=["rewritten", "as they were"],
)
def test_rows_older_than_a_change_of_type_may_have_other_values_only_after_a_rewrite(
    db: psycopg.Connection, make: Make, change: str, may_differ: bool
) -> None:
    db.execute("create table a (id int primary key, n int, v varchar(5)); insert into a values (1, 1, 'a')")
    source = make()
    source.prepare(["public.a"])
    known = [source.relation("public.a")]
    source.start(None, known)
    db.execute(f"alter table a alter {change}; insert into a values (2, 2)".encode())
    (made,) = layouts(read_all(source), *known)
    assert [new.name for _, new in retyped(made, known[0])] == ([change[0]] if may_differ else [])


def test_values_of_rows_older_than_a_column_of_a_partitioned_table(
    db: psycopg.Connection, make: Make
) -> None:
    db.execute("create table p (id int primary key) partition by range (id)")
    db.execute("create table p1 partition of p for values from (0) to (10)")
    db.execute("create table p2 (junk int, id int not null); alter table p2 drop junk")
    db.execute("alter table p attach partition p2 for values from (10) to (20)")
    source = make()
    source.prepare(["public.p"])
    source.start(None, [source.relation("public.p")])
    db.execute("alter table p add n int default 42, add t text; insert into p values (1), (11)")
    (relation,) = layouts(read_all(source))
    assert [(c.name, c.attnum, c.missing, c.note) for c in relation.columns] == [
        ("id", 1, None, None), ("n", 2, "42", None), ("t", 3, None, None),
    ]  # fmt: skip
    db.execute("alter table p add m int default 7")
    db.execute("create table p3 partition of p for values from (20) to (30); insert into p values (2)")
    (relation,) = layouts(read_all(source))  # rows of p3 have it themselves
    assert [(c.missing, c.note) for c in relation.columns[3:]] == [("7", None)]
    db.execute("alter table p add k int default 9")
    db.execute("vacuum full p1")
    db.execute("insert into p values (3)")
    (relation,) = layouts(read_all(source))
    assert [(c.missing, c.note) for c in relation.columns[4:]] == [(None, UNKNOWN_VALUE)]


def test_a_relation_is_known_by_the_name_that_it_was_asked_for(db: psycopg.Connection, make: Make) -> None:
    """It had another one for a moment, just when its first change was made."""
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    source.relation("public.a")  # its baseline begins
    db.execute("alter table a rename to b; insert into b values (1)")
    db.execute("alter table b rename to a; insert into a values (2)")
    source.start(None, [])
    assert [r.table for r in layouts(read_all(source))] == ["public.a"]
