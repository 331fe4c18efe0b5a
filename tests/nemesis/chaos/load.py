"""The load: random transactions of several writers at once, DDL, and tables that the model tests do not have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

import psycopg

from ...db.model import SCHEMA as MODEL
from ...db.model import TABLES, Writer
from . import ddl

HOSTILE = 'm."Größe, 1;"'
OTHERS = {
    "time": ["24:00:00", "04:05:06.789"], "timetz": ["04:05:06+02", "23:59:59.999999-15:59"],
    "interval": ["1 year 2 mons 3 days 04:05:06.789", "-1 days"], "json": ['{"a": [1, null]}', "null"],
    "jsonb": ['{"b": 1, "a": "é"}', "[]"], "inet": ["10.0.0.1/8", "::1"], "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"], "bit(3)": ["101"], "varbit": ["", "1"], "real": ["0.5", "NaN", "-Infinity"],
    "bpchar(5)": ["x", "a b"], '"char"': ["c"], "name": ["a name"], "m.mood": ["sad", 'o,k "'],
    "m.pair": ['(1,"a ""b""")', "(,)"], "m.little": ["7"], "int4range": ["[1,5)", "empty"], "oid": ["4294967295"],
    "point": ["(1,2)"], "pg_lsn": ["16/B374D848"], "money": ["-1.50"], "tsvector": ["'a':1 'b'"], "time[]": ["{01:00,NULL}"],
}  # fmt: skip
"""Types besides those of `m.types`, and values of each."""
MORE = f"""
create table m.types (id int primary key, a smallint, b bigint, c numeric(12,3), d double precision, e boolean,
  f bytea, g date, h timestamp, i timestamptz, j uuid, k varchar(20), l text[]);
alter table m.types replica identity full;
create table {HOSTILE} ("a b" int, "c,d" text, "é""'" text, primary key ("a b", "c,d"));
create table m.large (id int primary key, v text);
create type m.mood as enum ('sad', 'o,k "');
create type m.pair as (a int, b text);
create domain m.little as int check (value < 1000);
create table m.others (id int primary key, %s);
alter table m.others replica identity full;
""" % ", ".join(f"c{n} {kind}" for n, kind in enumerate(OTHERS))
SCHEMA = MODEL + MORE + ddl.SCHEMA
LARGE = 50_000
"""Rows of a large transaction, about."""
MOST_LARGE = 1
"""Large transactions in a round: what is written must be applied, too."""


class Mixed(Writer):
    """Makes transactions on all tables; whatever the database refuses, or a server that is gone, is passed over."""

    def __init__(self, url: Callable[[], str], seed: int, *, large: int = 0) -> None:
        self.url = url
        super().__init__(url(), seed)
        self.done, self.layouts, self._large_left = 0, 0, large

    def one(self) -> None:
        """One transaction."""
        try:
            match self.random.randrange(14):
                case 0:
                    self.random.choice([self._types, self._others])()
                case 1:
                    self._hostile()
                case 12:
                    ddl.write(self.random, self._do, self._id())
                case 13:
                    self._nested()
                case 2 if self._large_left and self.random.random() < 0.03:
                    self._large_left -= 1
                    self._large()
                case _:
                    self.transactions(1)
            self.done += 1
        except (psycopg.OperationalError, psycopg.Rollback):  # a rollback that no server is there for
            if self.session.closed or self.session.broken:
                time.sleep(0.5)
                with suppress(psycopg.Error):
                    self.session = psycopg.connect(self.url(), autocommit=True)
        except psycopg.Error:
            pass

    def change_layout(self) -> None:
        """A DDL and a change behind it."""
        self.layouts += 1
        with suppress(psycopg.Error):
            self.session.execute(ddl.NAMED_BACK.encode())
            if self.random.random() < 0.4:
                self.alter()
                return
            facts = self.session.execute(ddl.FACTS.encode()).fetchone()
            if facts is not None:
                for one in ddl.change(self.random, self.layouts, facts):  # type: ignore[arg-type]
                    self.session.execute(one.encode())
            ddl.write(self.random, self._do, self._id())

    def _nested(self) -> None:
        """Savepoints that are released, and some that are not, more than a transaction keeps in memory now and then."""
        with self.session.transaction():
            for _ in range(self.random.choice([2, 5, 80])):
                with suppress(psycopg.errors.IntegrityError), self.session.transaction():
                    self._change(self.random.choice(TABLES))
                    if self.random.random() < 0.2:
                        raise psycopg.Rollback

    def _types(self) -> None:
        key, r = self._id(), self.random
        self._do(
            "insert into m.types values (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s) on conflict (id) do update set"
            " a = excluded.a, c = excluded.c, f = excluded.f, i = excluded.i, j = null",
            key, r.choice([None, -32768, 32767]), r.choice([None, -(2**63), 2**63 - 1]), r.randrange(10**9) / 1000,
            r.choice([None, 0.1, -1e300, 5e-324]), r.choice([None, True, False]), r.choice([None, b"", b"\0\xff'\\"]),
            r.choice([None, "0001-01-01", "9999-12-31", "2026-02-28"]), r.choice([None, "2026-01-01 00:00:00.000001"]),
            r.choice([None, "1969-12-31 23:59:59.999999+00", "2026-03-29 02:30:00+02"]),
            r.choice([None, "00000000-0000-0000-0000-000000000001"]), r.choice([None, "", "é", "\\N"]),
            r.choice([None, [], ["a", None, "{,}"]]),
        )  # fmt: skip
        if r.random() < 0.3:
            self._do("delete from m.types where id = %s", self._id())

    def _others(self) -> None:
        key, r = self._id(), self.random
        names = ", ".join(f"c{n}" for n in range(len(OTHERS)))
        values = [r.choice([None, *some]) for some in OTHERS.values()]
        casts = ", ".join(f"%s::{kind}" for kind in OTHERS)
        self._do(
            f"insert into m.others (id, {names}) values (%s, {casts}) on conflict (id) do update set"
            " c0 = excluded.c0, c3 = excluded.c3, c14 = null, c15 = excluded.c15",
            key, *values,
        )  # fmt: skip
        if r.random() < 0.3:
            self._do("delete from m.others where id = %s", self._id())

    def _hostile(self) -> None:
        word = self.random.choice(["", "x", "é\n"])
        self._do(
            f"insert into {HOSTILE} values (%s,%s,%s) on conflict do nothing", self._id(), word, self._word()
        )
        self._do(f'update {HOSTILE} set "a b" = %s where "a b" = %s', self._id() + 100, self._id())
        self._do(f'delete from {HOSTILE} where "a b" = %s', self._id())

    def _large(self) -> None:
        start = self.random.randrange(20) * 5000
        with self.session.transaction():
            self._do(
                "insert into m.large select g, 'v' || g from generate_series(%s, %s) g"
                " on conflict (id) do update set v = m.large.v || '+'",
                start, start + LARGE,
            )  # fmt: skip
            self._do("delete from m.large where id %% 7 = %s", self.random.randrange(7))


class Load:
    """Writers in threads, until they are stopped; each rests up to `pause` seconds between two transactions."""

    def __init__(
        self, url: Callable[[], str], seed: int, *, writers: int = 2, ddl_every: float, pause: float
    ) -> None:
        self._over, self._pause = threading.Event(), pause
        self._writers = [Mixed(url, seed + k, large=MOST_LARGE * (k == 0)) for k in range(writers)]
        self._ddl_every = ddl_every
        self._threads = [
            threading.Thread(target=self._write, args=(w, k == 0), daemon=True)
            for k, w in enumerate(self._writers)
        ]

    def start(self) -> Load:
        """Begins."""
        for one in self._threads:
            one.start()
        return self

    def stop(self) -> int:
        """Ends; gives how many transactions there were."""
        self._over.set()
        for one in self._threads:
            one.join(300)
        with psycopg.connect(self._writers[0].url(), autocommit=True) as session:
            session.execute(ddl.NAMED_BACK.encode())
            session.execute(ddl.LAST.encode())
        return sum(w.done for w in self._writers)

    @property
    def layouts(self) -> int:
        """How many changes of layout were tried."""
        return sum(w.layouts for w in self._writers)

    def _write(self, writer: Mixed, alters: bool) -> None:
        chance, altered = Random(writer.random.random()), time.monotonic()
        while not self._over.is_set():
            writer.one()
            if alters and time.monotonic() - altered > self._ddl_every:
                altered = time.monotonic()
                writer.change_layout()
            time.sleep(chance.random() * self._pause)
