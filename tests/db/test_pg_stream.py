"""The stream on a real server: transactions, positions, restarts, messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from tailrace.errors import PositionError, SourceError
from tailrace.sources.postgresql.connect import lsn, lsn_of

from .reading import Make, addresses, layouts, read_all, shape, table_of

pytestmark = pytest.mark.db


def test_a_transaction_is_begin_rows_commit(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key, v text)")
    source = make()
    assert source.prepare(["public.a"]) is True
    source.start(None, [])
    db.execute("insert into a values (1, 'x'), (2, 'y')")
    db.execute("update a set v = 'z' where id = 1")
    db.execute("delete from a where id = 2")
    chunks = read_all(source)
    assert shape(chunks) == [
        (7, 0),
        (1, 1),
        (1, 2),
        (12, 3),
        (7, 0),
        (3, 1),
        (12, 2),
        (7, 0),
        (4, 1),
        (12, 2),
    ]
    table = table_of(chunks)
    relid = db.execute("select 'a'::regclass::oid::int").fetchone()[0]
    assert table["RELID"].to_pylist() == [0, relid, relid, 0, 0, relid, 0, 0, relid, 0]
    assert table["FLAGS"].unique().to_pylist() == [1]
    assert table["DATA"][1].as_py() == b"I" + relid.to_bytes(4, "big") + b"N\0\x02t\0\0\0\x011t\0\0\0\x01x"
    assert [c[:1] for c in table["DATA"].to_pylist()] == [
        b"B",
        b"I",
        b"I",
        b"C",
        b"B",
        b"U",
        b"C",
        b"B",
        b"D",
        b"C",
    ]
    assert addresses(chunks) == sorted(addresses(chunks))
    assert chunks[-1].complete == chunks[-1].records.num_rows
    assert chunks[-1].position is not None and chunks[-1].position > addresses(chunks)[-1]
    xids = table["TRXID"].to_pylist()
    assert len(set(xids)) == 3 and table["STMTTRXID"].to_pylist() == xids
    now = db.execute("select now()").fetchone()[0]
    assert all(abs((t - now).total_seconds()) < 60 for t in table["COMMIT_TIME"].to_pylist())


@pytest.mark.parametrize("limit", [1, 300, 5000])
def test_transactions_span_chunks(db: psycopg.Connection, make: Make, limit: int) -> None:
    db.execute("create table a (id int primary key, v text); create table b (id int primary key)")
    source = make()
    source.prepare(["public.a", "public.b"])
    source.start(None, [])
    for base in range(3):
        with db.transaction():
            db.execute(
                "insert into a select i + %s, repeat('x', 900) from generate_series(1, 150) i", (base * 1000,)
            )
            db.execute("insert into b values (%s)", (base,))
            db.execute("insert into a select i + 500 + %s, 'y' from generate_series(1, 50) i", (base * 1000,))
    chunks = read_all(source, limit)
    assert len(chunks) > 3
    assert shape(chunks) == [(7, 0), *((1, n) for n in range(1, 202)), (12, 202)] * 3
    assert [r.table for r in layouts(chunks)] == ["public.a", "public.b"]
    seen = 0
    for chunk in chunks:
        recids = chunk.records["RECID"].to_pylist()
        if chunk.complete:
            assert recids[chunk.complete - 1] == 12 and 12 not in recids[chunk.complete :]
            assert chunk.position is not None
        else:
            assert chunk.position is None and 12 not in recids
        for index, relation in chunk.relations:
            assert chunk.records["RELID"][index].as_py() in (0, relation.relid)
        seen += len(recids)
    whole = table_of(chunks)
    assert whole["TRXID"].to_pylist()[:203] == [whole["TRXID"][0].as_py()] * 203


def test_truncate_gives_one_record_per_table(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key); create table b (id int primary key, a int references a)")
    source = make()
    source.prepare(["public.a", "public.b"])
    source.start(None, [])
    db.execute("truncate a, b")
    chunks = read_all(source)
    assert shape(chunks) == [(7, 0), (13, 1), (13, 2), (12, 3)]
    assert set(table_of(chunks)["RELID"].to_pylist()) == {0} | {r.relid for r in layouts(chunks)}
    assert sorted(r.table for r in layouts(chunks)) == ["public.a", "public.b"]


def test_messages_inside_and_outside_transactions(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    with db.transaction():
        db.execute("insert into a values (1)")
        db.execute("select pg_logical_emit_message(true, 'tailrace', 'in')")
        db.execute("insert into a values (2)")
    db.execute("select pg_logical_emit_message(false, 'tailrace', 'out')")
    db.execute("insert into a values (3)")
    chunks = read_all(source)
    assert shape(chunks) == [(7, 0), (1, 1), (100, 2), (1, 3), (12, 4), (100, 0), (7, 0), (1, 1), (12, 2)]
    table = table_of(chunks)
    assert table["TRXID"][5].as_py() == 0
    assert table["COMMIT_TIME"][5] == table["COMMIT_TIME"][4]
    assert addresses(chunks) == sorted(addresses(chunks))


def test_a_message_outside_is_not_read_twice(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    db.execute("select pg_logical_emit_message(false, 'tailrace', 'out')")
    first = read_all(source)
    assert shape(first) == [(100, 0)]
    position = first[-1].position
    assert position is not None and position > addresses(first)[0]
    source.start(position, [])
    db.execute("insert into a values (1)")
    assert shape(read_all(source)) == [(7, 0), (1, 1), (12, 2)]


def test_a_commit_directly_behind_a_message_outside_is_not_passed_over(
    db: psycopg.Connection, database: str, make: Make
) -> None:
    """Capture has committed up to the message, and is killed before the transaction commits."""
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    with db.transaction():
        db.execute("insert into a values (1)")
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("select pg_logical_emit_message(false, 'tailrace', 'out')")
        first = read_all(source)
        assert shape(first) == [(100, 0)]
        position = first[-1].position or b""
        source.acknowledge(position)
        source.close()
    again = make()
    again.start(position, [])
    second = read_all(again)
    assert shape(second) == [(7, 0), (1, 1), (12, 2)]
    assert addresses(first)[0] < position <= addresses(second)[0]


def test_without_acknowledgement_the_same_records_come_again(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    for n in range(3):
        db.execute("insert into a values (%s)", (n,))
    first = read_all(source)
    source.close()
    again = make()
    again.start(None, [])
    second = read_all(again)
    assert table_of(first).equals(table_of(second))


def test_start_after_a_position_leaves_out_what_is_done(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    db.execute("insert into a values (1)")
    first = read_all(source)
    db.execute("insert into a values (2)")
    known = layouts(first)
    source.start(first[-1].position, known)
    second = read_all(source)
    assert shape(second) == [(7, 0), (1, 1), (12, 2)]
    assert addresses(second)[0] >= first[-1].position
    assert layouts(second, *known) == []


def test_acknowledging_moves_the_slot_and_idling_too(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key); create table unheard (id int)")
    source = make(idle_advance_s=0.1)
    source.prepare(["public.a"])
    source.start(None, [])
    db.execute("insert into a values (1)")
    first = read_all(source)
    assert first[-1].position is not None

    def confirmed() -> int:
        row = db.execute(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'tailrace_test'"
        )
        return lsn(row.fetchone()[0])

    source.acknowledge(first[-1].position)
    wait_for(lambda: confirmed() == lsn_of(first[-1].position or b""))
    db.execute("insert into unheard select generate_series(1, 1000)")
    end = source.end_position()
    deadline = time.monotonic() + 20
    idle = None
    # Release 14 sends transactions without changes of these tables, too: their begin and their end.
    unheard = {7, 12} if db.info.server_version < 150_000 else set()
    while time.monotonic() < deadline and (idle is None or idle < end):
        source.reached()
        chunk = source.read(1 << 20, 0.1)
        if chunk is not None:
            assert set(chunk.records["RECID"].to_pylist()) <= unheard and chunk.relations == []
            assert chunk.position is not None
            idle = chunk.position
    assert idle is not None and idle >= end
    source.acknowledge(idle)
    wait_for(lambda: confirmed() == lsn_of(idle))
    db.execute("insert into a values (2)")
    later = read_all(source)
    assert shape(later) == [(7, 0), (1, 1), (12, 2)] and addresses(later)[0] >= idle


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_lag_counts_what_is_not_acknowledged(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key, v text)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    db.execute("insert into a select i, repeat('x', 100) from generate_series(1, 1000) i")
    assert source.lag().bytes > 100_000
    time.sleep(0.3)
    assert source.lag().seconds >= 0.2
    chunks = read_all(source)
    source.acknowledge(source.reached() or b"")
    assert chunks and source.lag().bytes < 10_000
    assert source.lag().seconds < 5


@pytest.mark.slow
def test_a_short_wal_sender_timeout_is_survived(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    name = db.info.dbname
    db.execute(f"alter database {name} set wal_sender_timeout = '600ms'")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        source.read(1 << 20, 0.7)
    for _ in range(10):
        time.sleep(0.15)
        source.heartbeat()
    db.execute("insert into a values (1)")
    assert shape(read_all(source)) == [(7, 0), (1, 1), (12, 2)]


def test_a_slot_whose_reader_is_about_to_go_is_waited_for(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    first = make()
    first.prepare(["public.a"])
    first.start(None, [])
    threading.Timer(0.5, first.close).start()
    second = make()
    second.start(None, [])
    db.execute("insert into a values (1)")
    assert shape(read_all(second)) == [(7, 0), (1, 1), (12, 2)]


def test_errors_say_what_to_do(db: psycopg.Connection, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.sources.postgresql.stream.IN_USE_S", 0.1)
    db.execute("create table a (id int primary key)")
    source = make()
    with pytest.raises(PositionError, match="does not exist") as missing:
        source.start(None, [])
    assert "new baseline" in (missing.value.hint or "") and "slot tailrace_test" in (
        missing.value.where or ""
    )
    source.prepare(["public.a"])
    source.start(None, [])
    with pytest.raises(SourceError, match="is active for PID") as active:
        make().start(None, [])
    assert "pg_terminate_backend" in (active.value.hint or "")
    db.execute(
        "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
        " where slot_name = 'tailrace_test'"
    )
    with pytest.raises(SourceError):
        for _ in range(20):
            source.read(1 << 20, 0.1)
    source.start(None, [])
    db.execute("insert into a values (1)")
    assert shape(read_all(source)) == [(7, 0), (1, 1), (12, 2)]


def test_a_publication_dropped_in_mid_stream_stops_the_stream(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make(idle_advance_s=0.0)
    source.prepare(["public.a"])
    source.start(None, [])
    db.execute("drop publication tailrace_test")
    db.execute("insert into a values (1)")
    with pytest.raises(PositionError, match="publication") as error:
        for _ in range(50):
            source.reached()
            source.read(1 << 20, 0.1)
    assert "new baseline" in (error.value.hint or "")


def test_old_images_by_replica_identity(db: psycopg.Connection, make: Make) -> None:
    db.execute(
        """
        create table d (id int primary key, u int not null unique, v text);
        create table i (id int primary key, u int not null unique, v text);
        alter table i replica identity using index i_u_key;
        create table f (id int primary key, v text); alter table f replica identity full;
        create table n (id int primary key, v text);
        """
    )
    source = make()
    source.prepare(["public.d", "public.i", "public.f", "public.n"])
    source.start(None, [])
    db.execute(
        "insert into d values (1, 1, 'a'); insert into i values (1, 1, 'a'); insert into f values (1, 'a')"
    )
    db.execute("alter table n replica identity nothing; insert into n values (1, 'a')")
    db.execute(
        "update d set v = 'b'; update d set id = 2; update i set id = 2;"
        "update i set u = 2; update f set v = 'b'"
    )
    chunks = read_all(source)
    found = {r.name: (r.identity, r.key) for r in layouts(chunks)}
    assert found == {"d": ("d", ["id"]), "i": ("i", ["u"]), "f": ("f", ["id"]), "n": ("n", ["id"])}
    tags = [m[5:6] for m in table_of(chunks)["DATA"].to_pylist() if m[:1] == b"U"]
    assert tags == [b"N", b"K", b"N", b"K", b"O"]


def test_how_much_log_the_server_keeps_for_a_slot(db: psycopg.Connection, make: Make) -> None:
    db.execute("create table a (id int primary key)")
    source = make()
    source.prepare(["public.a"])
    source.start(None, [])
    assert read_all(source) == []
    before = source.lag()
    db.execute("select pg_logical_emit_message(true, 'x', repeat('x', 1000000))")
    after = source.lag()
    assert before.retained is not None and after.retained is not None
    assert after.retained >= before.retained + 1_000_000
    assert after.left is None  # max_slot_wal_keep_size is -1
    assert source.lag().bytes >= 1_000_000
