"""The source of every bench: an embedded PostgreSQL, its tables, and the changes made to them.

Two backlogs. `bulk`: one table of five typed columns, statements of 1,000 rows: 3 parts inserts, 3 parts
updates, 1 part deletes. `small`: transactions of four changes over a table of 1,000,000 rows and one of
2,000,000, as pgbench has them: updates of random rows of both, an insert, and in every second one a delete.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

SETTINGS = {
    "fsync": "off",  # the disk is not what is measured
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "logical_decoding_work_mem": "256MB",
    "shared_buffers": "512MB",
    "autovacuum": "off",  # its moment is random; it would be somebody's misfortune
}
"""What the server has besides the embedded server's own settings."""


@dataclass(frozen=True)
class Sizes:
    """How much each bench does; warm-ups do a `WARM`th of that first."""

    bulk: int  # rows inserted in `bulk`; as many updates, a third as many deletes
    accounts: int
    orders: int
    transactions: int
    one_transaction: int


WARM = 10
FULL = Sizes(300_000, 1_000_000, 2_000_000, 150_000, 5_000_000)
QUICK = Sizes(30_000, 50_000, 100_000, 5_000, 200_000)


@dataclass(frozen=True)
class Backlog:
    """Changes that wait in a server's log: the tables they are of and how many they are. `warm` more were made
    before them: both sides see those first and are not timed (JVMs get quick by working)."""

    name: str
    tables: tuple[str, ...]
    changes: int
    warm: int = 0


@contextmanager
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """The embedded server, with a TCP port for JDBC."""
    with EmbeddedPostgres(folder, port=0, settings=SETTINGS) as running:
        yield running


def database(running: EmbeddedPostgres, name: str) -> psycopg.Connection[Any]:
    """A new database and a session in it."""
    with psycopg.connect(running.tcp_url(), autocommit=True) as session:
        session.execute(f"create database {name}")
    return psycopg.connect(running.tcp_url(name), autocommit=True)


def bulk_tables(session: psycopg.Connection[Any]) -> tuple[str, ...]:
    """The table of `bulk`, empty."""
    session.execute("create schema bench")
    session.execute(
        "create table bench.line (id int primary key, name text, amount numeric(12,2), "
        "at timestamptz default now(), note text)"
    )
    return ("bench.line",)


def bulk(session: psycopg.Connection[Any], rows: int, start: int = 0) -> int:
    """The changes of `bulk`, ids from `start` + 1 on; how many."""
    steps = [(start + k + 1, start + min(k + 1000, rows)) for k in range(0, rows, 1000)]
    for low, high in steps:
        session.execute(
            "insert into bench.line select i, 'name ' || i, i * 1.25, now(), md5(i::text) "
            "from generate_series(%s::int, %s::int) i",
            (low, high),
        )
    for low, high in steps:
        session.execute(
            "update bench.line set amount = amount + 1, note = md5(note) where id between %s and %s",
            (low, high),
        )
    deleted = 0
    for low, high in steps[::3]:
        deleted += session.execute("delete from bench.line where id between %s and %s", (low, high)).rowcount
    return 2 * rows + deleted


def small_tables(session: psycopg.Connection[Any], sizes: Sizes) -> tuple[str, ...]:
    """The tables of `small`, filled."""
    session.execute("create schema bench")
    session.execute(
        "create table bench.account (id int primary key, branch int not null, "
        "balance numeric(14,2) not null, changed timestamptz not null, filler text not null)"
    )
    session.execute(
        "insert into bench.account select i, i %% 100, 0, now(), repeat(md5(i::text), 2) "
        "from generate_series(1, %s::int) i",
        (sizes.accounts,),
    )
    session.execute(
        "create table bench.orders (id bigint primary key, account int not null, "
        "amount numeric(12,2) not null, state text not null, placed timestamptz not null, note text)"
    )
    session.execute(
        "insert into bench.orders select i, i %% %s::int, i * 0.25, 'new', now(), md5(i::text) "
        "from generate_series(1, %s::bigint) i",
        (sizes.accounts, sizes.orders),
    )
    session.execute(_WORK)
    session.execute("analyze")
    session.execute("checkpoint")
    return ("bench.account", "bench.orders")


# Deletes take every 20th order in turn and updates leave those alone, so each statement changes one row and
# the number of changes is known without counting. Two sessions never want the same new or deleted order.
_WORK = """
create procedure bench.work(start int, transactions int, account_rows int, order_rows bigint, mine int) language plpgsql as $$
declare gone int := (start + 1) / 2; one int; another int; old bigint;
begin
  for i in start .. start + transactions - 1 loop
    one := 1 + floor(random() * account_rows);
    another := 1 + floor(random() * account_rows);
    old := floor(random() * (order_rows / 20))::bigint * 20 + 1 + floor(random() * 19)::int;
    update bench.account set balance = balance + i % 1000 - 500, changed = now() where id = one;
    update bench.orders set amount = amount + 1, state = 'paid' where id = old;
    insert into bench.orders values
      (order_rows + 2 * i + mine + 1, 1 + i % account_rows, i * 0.5, 'new', now(), md5(i::text));
    if i % 2 = 0 then
      delete from bench.orders where id = 20 * (2 * gone + mine + 1);
      gone := gone + 1;
    else
      update bench.account set balance = balance - 1, changed = now() where id = another;
    end if;
    commit;
  end loop;
end $$
"""


def small(url: str, sizes: Sizes, transactions: int, start: int = 0) -> int:
    """The changes of `small`, by two sessions side by side; how many. `start`: transactions made before."""
    each, first = transactions // 2, start // 2

    def work(mine: int) -> None:
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("select setseed(%s)", (mine / 2,))
            session.execute(
                "call bench.work(%s, %s, %s, %s, %s)", (first, each, sizes.accounts, sizes.orders, mine)
            )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 1)))
    return 2 * each * 4


def one_transaction(session: psycopg.Connection[Any], rows: int) -> int:
    """One transaction that inserts so many rows; how many."""
    session.execute(
        "insert into bench.line select i, 'name ' || i, i * 1.25, now(), md5(i::text) "
        "from generate_series(1, %s::int) i",
        (rows,),
    )
    return rows


def slot_for_peer(session: psycopg.Connection[Any], tables: tuple[str, ...], name: str) -> None:
    """A publication and a slot for Debezium, both called `name`."""
    session.execute(f"create publication {name} for table {', '.join(tables)}")
    session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))


def drop_slot(session: psycopg.Connection[Any], name: str) -> None:
    """Lets a slot go, so that the server need not keep its log."""
    session.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
        "where slot_name = %s and not active",
        (name,),
    )
