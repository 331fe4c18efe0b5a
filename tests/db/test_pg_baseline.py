"""Snapshots and baselines on a real server: every row once, in the snapshot or in the stream."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from tailrace.errors import ConnectionLostError, SourceError, TableMovedError
from tailrace.model.change import Relation
from tailrace.model.types import schema_of
from tailrace.sources.base import BaselinePart, Snapshot
from tailrace.sources.postgresql.baseline import PgPartReader
from tailrace.sources.postgresql.connect import connect, literal
from tailrace.sources.postgresql.source import PostgresSource

from .reading import Make, addresses, read_all, table_of

pytestmark = pytest.mark.db


def baseline(source: PostgresSource, snapshot: Snapshot, table: str, rows_per_part: int = 100) -> pa.Table:
    relation = source.relation(table)
    batches = [
        found.batch
        for part in source.parts(relation, rows_per_part)
        for found in source.read_part(snapshot, relation, part)
    ]
    return pa.Table.from_batches(batches, schema_of(relation.columns))


@pytest.mark.parametrize("fresh", [True, False])
def test_no_gap_and_no_overlap_under_concurrent_writes(
    db: psycopg.Connection, database: str, make: Make, fresh: bool
) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    if not fresh:
        source.prepare(["public.a"])
        with source.snapshot():  # the new slot's own; the next is a temporary slot's
            pass
        source.start(None, [])
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(database, autocommit=True) as session:
            number = 0
            while not stop.is_set():
                number += 1
                session.execute("insert into a values (%s)", (number,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not db.execute("select 1 from a offset 50 limit 1").fetchone():
            pass
        if fresh:
            assert source.prepare(["public.a"]) is True and source.slot_is_new
        with source.snapshot() as snapshot:
            while not db.execute("select 1 from a where id = (select max(id) from a)").fetchone():
                pass
            last = db.execute("select max(id) from a").fetchone()[0]
            while not db.execute("select 1 from a where id > %s", (last + 50,)).fetchone():
                pass
            rows = baseline(source, snapshot, "public.a")["id"].to_pylist()
        assert not source.slot_is_new
    finally:
        stop.set()
        writer.join()
    if fresh:
        source.start(snapshot.position, [])
    chunks = read_all(source)
    later = [
        int(data[13:])
        for data, recid, address in zip(
            table_of(chunks)["DATA"].to_pylist(),
            table_of(chunks)["RECID"].to_pylist(),
            addresses(chunks),
            strict=True,
        )
        if recid == 1 and address >= snapshot.position
    ]
    total = db.execute("select max(id) from a").fetchone()[0]
    assert len(rows) >= 50 and len(later) >= 50
    assert rows + later == list(range(1, total + 1))


def test_parts_cover_the_table_once(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key, v text)")
    db.execute(
        "insert into a select i, repeat('x', 200) from generate_series(1, 5000) i;"
        "delete from a where id % 7 = 0"
    )
    db.execute("analyze a")
    source = make()
    source.prepare(["public.a"])
    relation = source.relation("public.a")
    parts = source.parts(relation, 500)
    assert 7 <= len(parts) <= 13
    assert [p.first for p in parts[1:]] == [p.last for p in parts[:-1]]
    assert parts[0].first == 0 and parts[-1].last is None
    with source.snapshot() as snapshot:
        got = baseline(source, snapshot, "public.a", 500)["id"].to_pylist()
    assert sorted(got) == [i for i in range(1, 5001) if i % 7]
    db.execute("create table nothing (id int primary key)")
    assert len(source.parts(source.relation("public.nothing"), 500)) == 1


def test_parts_of_wide_rows_have_fewer_rows(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table narrow (id int); insert into narrow select generate_series(1, 20000)")
    db.execute("create table wide (id int, v text); alter table wide alter v set storage plain")
    db.execute("insert into wide select i, repeat('x', 1900) from generate_series(1, 2000) i")
    db.execute("analyze narrow; analyze wide")
    source = make()
    source.prepare(["public.narrow", "public.wide"])
    narrow, wide = (source.parts(source.relation(f"public.{t}"), 2000) for t in ("narrow", "wide"))
    assert [len(narrow), len(wide)] == [pytest.approx(10, abs=1), pytest.approx(8, abs=1)]
    assert sum(part.rows for part in wide) == pytest.approx(2000, abs=10)


def test_partitions_are_read_leaf_by_leaf(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        """
        create table p (id int primary key, v text) partition by range (id);
        create table p1 partition of p for values from (0) to (10);
        create table "P 2" (v text, junk int, id int not null);
        alter table "P 2" drop junk; alter table p attach partition "P 2" for values from (10) to (100);
        insert into p select i, 'v' || i from generate_series(8, 12) i
        """
    )
    source = make()
    source.prepare(["public.p"])
    with source.snapshot() as snapshot:
        rows = baseline(source, snapshot, "public.p").to_pylist()
    assert sorted((r["id"], r["v"]) for r in rows) == [(i, f"v{i}") for i in range(8, 13)]


def test_values_come_typed_and_bad_ones_are_told(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        """create table a (id int primary key, n numeric(5,1), d date, s text, b bytea,
        g int generated always as (id) stored)"""
    )
    db.execute(
        """insert into a values (1, 1.5, '2026-01-02', '', '\\x00ff'),
        (2, 'NaN', 'infinity', E'a,"b"\\nc\\\\', null),
        (3, null, '4000-01-01 BC', null, '\\x')"""
    )
    source = make()
    source.prepare(["public.a"])
    relation = source.relation("public.a")
    with source.snapshot() as snapshot:
        (part,) = source.parts(relation, 1000)
        ((batch, bad),) = list(source.read_part(snapshot, relation, part))
    assert batch.schema == schema_of(relation.columns)
    assert batch.schema.names[:5] == ["id", "n", "d", "s", "b"]  # then g, where it is published
    columns = batch.to_pydict()
    assert [str(n) for n in columns["n"]] == ["1.5", "None", "None"]
    assert [str(d) for d in columns["d"]] == ["2026-01-02", "9999-12-31", "None"]
    assert columns["s"] == ["", 'a,"b"\nc\\', None]
    assert columns["b"] == [b"\x00\xff", None, b""]
    assert sorted(bad) == [(1, "n", "NaN"), (2, "d", "4000-01-01 BC")]


def test_a_worker_process_reads_a_part(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key); insert into a values (1), (2)")
    source = make()
    source.prepare(["public.a"])
    relation = source.relation("public.a")
    (part,) = source.parts(relation, 1000)
    with source.snapshot() as snapshot, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        done = pool.submit(rows_of, source.part_reader(), snapshot, relation, part)
        assert done.result() == [{"id": 1}, {"id": 2}]


def rows_of(
    reader: PgPartReader, snapshot: Snapshot, relation: object, part: BaselinePart
) -> list[dict[str, int]]:
    return [row for batch, _ in reader(snapshot, relation, part) for row in batch.to_pylist()]


def test_large_tables_come_in_batches(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        "create table a (id int, v text);"
        "insert into a select i, repeat('x', 1 << 20) from generate_series(1, 40) i"
    )
    source = make()
    source.prepare(["public.a"])
    relation = source.relation("public.a")
    with source.snapshot() as snapshot:
        sizes = [
            found.batch.num_rows
            for part in source.parts(relation, 1_000_000)
            for found in source.read_part(snapshot, relation, part)
        ]
    assert sizes == [16, 16, 8]


def test_a_snapshot_that_has_ended(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    relation = source.relation("public.a")
    (part,) = source.parts(relation, 1000)
    with source.snapshot():
        pass
    with source.snapshot() as snapshot:
        slots = db.execute("select count(*) from pg_replication_slots where temporary").fetchone()
        assert slots == (1,)
    while db.execute("select 1 from pg_replication_slots where temporary").fetchone():
        pass  # the server ends the connection a moment later
    # The session that held it has gone: the baseline is begun again.
    with pytest.raises(ConnectionLostError, match=r"snapshot .* has ended") as error:
        list(source.read_part(snapshot, relation, part))
    assert "public.a" in (error.value.where or "") and "slot" not in (error.value.hint or "")


def test_a_reading_that_is_cancelled_begins_again(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int, v text)")
    db.execute("insert into a select n, repeat('x', 999) from generate_series(1, 40000) n")
    source = make()
    source.prepare(["public.a"])
    relation = source.relation("public.a")
    (part,) = source.parts(relation, 1_000_000)
    with source.snapshot() as snapshot:
        batches = source.read_part(snapshot, relation, part)
        next(batches)
        db.execute("select pg_cancel_backend(pid) from pg_stat_activity where query like 'COPY%'")
        with pytest.raises(ConnectionLostError, match="user request") as error:
            list(batches)
    assert error.value.hint == "it will be retried; see the server's log"


def test_rows_hidden_by_row_security_are_an_error(db: psycopg.Connection, database: str) -> None:
    name = f"reader_{db.info.dbname}"
    db.execute(
        f"""create role {name} login replication; create table a (id int primary key);
        insert into a values (1); alter table a enable row level security; grant select on a to {name}"""
    )
    source = PostgresSource(database.replace("postgres@", f"{name}@"), "test")
    try:
        relation = source.relation("public.a")
        (part,) = source.parts(relation, 1000)
        with source.snapshot() as snapshot, pytest.raises(SourceError, match="row-level security"):
            list(source.read_part(snapshot, relation, part))
    finally:
        source.close()
        db.execute(f"drop owned by {name}; drop role {name}")


@pytest.mark.parametrize(
    "statement", ["truncate h", "alter table h alter id type bigint", "drop table h", "vacuum full h"]
)
def test_a_table_that_moved_under_the_snapshot_is_noticed(
    db: psycopg.Connection, make: Make, statement: str
) -> None:
    db.execute("create table h (id int primary key); insert into h values (1)")
    with one_part(make(), "public.h") as (source, snapshot, relation, part):
        db.execute("insert into h values (2)")
        ((batch, _),) = source.read_part(snapshot, relation, part)
        assert batch.to_pylist() == [{"id": 1}]
        db.execute(statement)  # type: ignore[call-overload]
        with pytest.raises(TableMovedError, match="h was truncated, rewritten, dropped or altered"):
            list(source.read_part(snapshot, relation, part))


@contextmanager
def one_part(
    source: PostgresSource, table: str
) -> Iterator[tuple[PostgresSource, Snapshot, Relation, BaselinePart]]:
    """A source that publishes a table, a snapshot, and the table's layout and only part in it."""
    source.prepare([table])
    relation = source.relation(table)
    with source.snapshot() as snapshot:
        (part,) = source.parts(relation, 100)
        yield source, snapshot, relation, part


SWAP = "alter table w rename a to x; alter table w rename b to a; alter table w rename x to b"


RENAMED = "alter table w rename a to z; alter table w add a int"
NOTHING = "alter table w add c int; create index on w (a); alter table w alter b set default 7"


@pytest.mark.parametrize(
    ("statement", "moved", "partitioned"),
    [
        (RENAMED, True, False),
        (SWAP, True, False),
        (SWAP.replace(" a ", " id ").replace(" a;", " id;"), True, True),
        ("alter table w drop a; alter table w add a int", True, True),
        (NOTHING, False, False),
        (NOTHING, False, True),
    ],
    ids=[
        "renamed and added",
        "swapped",
        "key swapped",
        "dropped and added",
        "nothing",
        "nothing, partitions",
    ],
)
def test_a_name_that_came_to_another_column_is_noticed(
    db: psycopg.Connection, make: Make, statement: str, moved: bool, partitioned: bool
) -> None:
    """COPY would take the other column's values. Rows are not rewritten, and all names are there."""
    how = "partition by range (id)" if partitioned else ""
    db.execute(f"create table w (gone int, id int primary key, a int, b int) {how}")  # type: ignore[arg-type]
    if partitioned:  # its columns have other numbers
        db.execute("create table w1 (b int, a int, id int not null)")
        db.execute("alter table w drop gone; alter table w attach partition w1 for values from (0) to (9)")
    db.execute("insert into w (id, a, b) values (1, 2, 3)")
    with one_part(make(), "public.w") as (source, snapshot, relation, part):
        db.execute(statement)  # type: ignore[call-overload]
        if moved:
            with pytest.raises(TableMovedError, match=r"w1? was truncated, rewritten, dropped or altered"):
                list(source.read_part(snapshot, relation, part))
            return
        ((batch, _),) = source.read_part(snapshot, relation, part)
        assert [(r["id"], r["a"], r["b"]) for r in batch.to_pylist()] == [(1, 2, 3)]


def test_a_name_that_came_to_another_table_is_noticed(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table v (id int primary key); insert into v values (1)")
    with one_part(make(), "public.v") as (source, snapshot, relation, part):
        db.execute("create table twin (id int primary key); insert into twin values (7)")
        db.execute("alter table v rename to w; alter table twin rename to v")
        # Without a snapshot, too: the rows as they are now.
        for one in (snapshot, replace(snapshot, name="")):
            with pytest.raises(TableMovedError, match="v was truncated, rewritten, dropped or altered"):
                list(source.read_part(one, relation, part))


def test_an_error_in_mid_copy_is_no_lost_connection(
    db: psycopg.Connection, database: str, make: Make
) -> None:
    """It would come again with every new connection."""
    db.execute("create table a (id int primary key); insert into a values (1), (2)")
    with one_part(make(), "public.a") as (_, snapshot, relation, part):
        read = PgPartReader(database, only="1 / (2 - id) > 0")
        with pytest.raises(SourceError, match="division by zero") as caught:
            list(read(snapshot, relation, part))
    assert not isinstance(caught.value, ConnectionLostError)
    assert "public.a" in (caught.value.where or "")


def test_a_connection_that_ends_in_mid_copy_is_lost(
    db: psycopg.Connection, database: str, make: Make
) -> None:
    db.execute("create table a (id int primary key); insert into a values (1)")
    with one_part(make(), "public.a") as (_, snapshot, relation, part):
        read = PgPartReader(database, only="pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(ConnectionLostError, match="terminating connection"):
            list(read(snapshot, relation, part))


def test_standard_conforming_strings_off_on_the_server(
    db: psycopg.Connection, database: str, make: Make
) -> None:
    name = db.execute("select current_database()").fetchone()[0]
    db.execute(f"alter database {name} set standard_conforming_strings = off")
    db.execute('create table "a\\n\'b" (id int primary key, v text)')
    hostile = "\\' or true; -- \\\\ \n \\x41"
    db.execute('insert into "a\\n\'b" values (1, %s)', (hostile,))
    table = "public.a\\n'b"
    source = make()
    source.prepare([table])
    with source.snapshot() as snapshot:
        assert baseline(source, snapshot, table).to_pylist() == [{"id": 1, "v": hostile}]
    source.start(None, [])
    db.execute('update "a\\n\'b" set v = v || %s', ("\\",))
    assert f"{hostile}\\".encode() in table_of(read_all(source))["DATA"].to_pylist()[1]
    with closing(connect(database)) as session:
        assert session.execute(f"select {literal(hostile)}").fetchone() == (hostile,)
