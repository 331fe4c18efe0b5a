"""A user of the schema `shop`: continuous small mixed transactions, and each act once.

An act is a case that careless change capture gets wrong. Acts are distributed over the given time; every act
is executed, however short the time is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import psycopg

from ..sources.postgresql.connect import Session
from .schema import ROWS, TABLES

HERO, HERO_LATER = 1_000_001, 2_000_002
"""The customer whose changes the demo shows, before and after the key changes."""


def build(url: str) -> None:
    """Creates the schema and its first rows."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(TABLES)
        session.execute(ROWS)


class ShopWriter:
    """Writes to the shop until the time is over.

    Args:
        url: the database.
        seconds: the duration, over which all acts are distributed.
        show: called with a line per act.
    """

    def __init__(self, url: str, seconds: float, show: Callable[[str], None] = lambda _: None) -> None:
        self._url, self._seconds, self._show = url, seconds, show
        self._random = random.Random(7)
        self._next = 10_000
        self.transactions = 0
        self.rolled_back = 0

    def run(self, stop: threading.Event) -> None:
        """Runs the writer; `stop` ends it early, without the remaining acts."""
        began = time.monotonic()
        with psycopg.connect(self._url, autocommit=True) as session:
            for k, act in enumerate(ACTS):
                self._work(session, began + self._seconds * (k + 0.5) / len(ACTS), stop)
                if stop.is_set():
                    return
                act(session)
                self._show((act.__doc__ or "").strip())
                self.rolled_back += act is rolled_back
            self._work(session, began + self._seconds, stop)

    def _work(self, session: Session, until: float, stop: threading.Event) -> None:
        while time.monotonic() < until and not stop.is_set():
            self._transaction(session)
            time.sleep(0.004)

    def _transaction(self, session: Session) -> None:
        """Executes one transaction over two or three tables."""
        self._next += 10
        given = {"n": self._next, "r": self._random.randrange(2000), "s": self._random.random()}
        with session.transaction():
            for statement in self._random.sample(DAILY, k=self._random.choice((2, 3))):
                session.execute(statement, given)
        self.transactions += 1


DAILY = [
    """insert into shop.customer (email, nick, joined, profile)
       select 'n' || %(n)s + i || '@example.com', 'New' || %(n)s + i, now(), '{"visits": 0}'
       from generate_series(1, 3) as i""",
    "update shop.customer set note = null, profile = profile || '{\"seen\": true}' where id = %(r)s",
    "update shop.customer set note = note, address = '192.168.0.1' where id between %(r)s and %(r)s + 4",
    "delete from shop.customer where id = %(r)s and %(s)s < 0.2",
    """insert into shop.orders (customer_id, number, quantity, price, placed, state)
       select %(r)s, %(n)s + i, i, %(s)s * 100, now() at time zone 'UTC', 'new'
       from generate_series(1, 5) as i""",
    "update shop.orders set state = 'sent', quantity = quantity + 1 where customer_id = %(r)s",
    "delete from shop.orders where customer_id = %(r)s and state = 'sent' and %(s)s < 0.5",
    """update shop.product set price = price * 1.01, tags = array_append(tags, null)
       where sku = md5('product' || %(r)s / 4)::uuid""",
    """update shop.product set picture = null, weight = 'NaN'
       where sku = md5('product' || %(r)s / 4)::uuid and %(s)s < 0.3""",
    """insert into shop.event
       values ('click', %(r)s, now() at time zone 'UTC', null), ('view', 1, null, '[1, 2]')""",
    "delete from shop.event where ctid = (select min(ctid) from shop.event where amount = %(r)s %% 10)",
    """insert into shop.reading select 100 + i, now() + %(n)s * interval '1 second', %(s)s, B'10101010'
       from generate_series(1, 4) as i""",
    "update shop.reading set value = value + 1 where sensor = %(r)s %% 20 and value < %(s)s - 0.9",
    "update shop.document set revision = revision + 1 where id = %(r)s %% 60",  # the body is not sent
    "update shop.document set body = shop.noise(9500) where id = %(r)s %% 60 and %(s)s < 0.1",
    """insert into shop."Mixed Case" values (%(n)s, 'select', null, now())""",
    """update shop."Mixed Case" set "select" = null, "from" = "from" + 1 where "Order" = %(r)s %% 100""",
]


def arrives(session: Session) -> None:
    """customer 1000001 arrives, with an order, in one transaction"""
    with session.transaction():
        session.execute(
            "insert into shop.customer values (%s, 'ada@example.com', 'Ada', '{\"visits\": 1}', '::1', "
            "'2026-01-01 UTC', 'first visit')",
            [HERO],
        )
        session.execute(
            "insert into shop.orders values (%s, 1, 2, 9.95, default, now(), 'new', null)", [HERO]
        )


def changes(session: Session) -> None:
    """the customer changes: a value, a value to NULL, and nothing at all"""
    session.execute("update shop.customer set profile = '{\"visits\": 2}', note = null where id = %s", [HERO])
    session.execute("update shop.customer set nick = nick where id = %s", [HERO])


def grows_a_column(session: Session) -> None:
    """ALTER TABLE customer ADD COLUMN with a default, then rows use it"""
    session.execute("alter table shop.customer add column loyalty int not null default 7")
    session.execute("update shop.customer set loyalty = 8 where id in (3, 4, %s)", [HERO])
    session.execute("insert into shop.customer (email, joined, loyalty) values ('l@example.com', now(), 9)")


def changes_keys(session: Session) -> None:
    """keys change: the customer's, an order's, and a document's whose large text is not sent"""
    with session.transaction():
        session.execute("update shop.customer set id = %s where id = %s", [HERO_LATER, HERO])
        session.execute("update shop.orders set customer_id = %s where customer_id = %s", [HERO_LATER, HERO])
    session.execute("update shop.document set id = 1000 + id, title = 'moved' where id in (7, 8)")


def swaps_keys(session: Session) -> None:
    """two products swap their keys through a third value, in one transaction"""
    one, two, spare = (f"md5('product{k}')::uuid" for k in ("1", "2", " none"))
    with session.transaction():
        for new, old in ((spare, one), (one, two), (two, spare)):
            session.execute(f"update shop.product set sku = {new} where sku = {old}")


def widens(session: Session) -> None:
    """ALTER TABLE product: stock becomes bigint, then holds more than an int can"""
    session.execute("update shop.product set stock = stock + 1 where stock < 100")
    session.execute("alter table shop.product alter column stock type bigint")
    session.execute("update shop.product set stock = 3000000000 + stock where stock %% 10 = 5", [])


def renames(session: Session) -> None:
    """ALTER TABLE product RENAME COLUMN warranty TO guarantee, then rows use it"""
    session.execute("update shop.product set warranty = '1 day' where stock %% 10 = 1", [])
    session.execute("alter table shop.product rename column warranty to guarantee")
    session.execute("update shop.product set guarantee = '2 years' where stock %% 10 in (1, 2)", [])


def starts_over(session: Session) -> None:
    """TRUNCATE of the partitioned table, filled again in the same transaction"""
    with session.transaction():
        session.execute("insert into shop.reading values (1, '2025-01-01 UTC', 1, null)")
        session.execute("truncate shop.reading")
        session.execute(
            "insert into shop.reading select i, '2025-12-31 12:00 UTC', i, B'00000001' "
            "from generate_series(1, 900) as i"
        )


def moves_between_partitions(session: Session) -> None:
    """rows move to another partition"""
    session.execute("update shop.reading set at = at + interval '1 day' where sensor between 1 and 50")


def counts_duplicates(session: Session) -> None:
    """three equal rows without a key: one is deleted, one is changed"""
    session.execute("insert into shop.event select 'same', 5, '2026-02-02', '{}' from generate_series(1, 3)")
    one = "ctid = (select min(ctid) from shop.event where kind = 'same')"
    session.execute(f"delete from shop.event where {one}")
    session.execute(f"update shop.event set amount = 6 where {one}")


def rolled_back(session: Session) -> None:
    """a transaction is rolled back, and in another one the part after a savepoint"""
    with session.transaction(force_rollback=True):
        session.execute("delete from shop.customer")
        session.execute("update shop.product set price = 0")
    with session.transaction():
        session.execute("update shop.orders set comment = 'kept' where number = 10")
        with session.transaction(force_rollback=True):
            session.execute("update shop.orders set comment = 'never seen' where number < 1000")
        session.execute("update shop.orders set comment = 'kept too' where number = 11")


def comes_and_goes(session: Session) -> None:
    """in one transaction a row is inserted and deleted, another deleted and inserted again"""
    with session.transaction():
        session.execute("insert into shop.document values (500, 'short life', 1, 'x')")
        session.execute("delete from shop.document where id = 500")
        session.execute("delete from shop.document where id = 9")
        session.execute("insert into shop.document values (9, 'second life', 1, shop.noise(9000))")


def leaves(session: Session) -> None:
    """the customer, 2000002 by now, leaves"""
    with session.transaction():
        session.execute("delete from shop.orders where customer_id = %s", [HERO_LATER])
        session.execute("delete from shop.customer where id = %s", [HERO_LATER])


ACTS: list[Callable[[Session], None]] = [
    arrives, changes, grows_a_column, changes_keys, swaps_keys, widens, renames, starts_over,
    moves_between_partitions, counts_duplicates, rolled_back, comes_and_goes, leaves,
]  # fmt: skip
