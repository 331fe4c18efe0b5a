"""DDL of every kind, on a table made for it: what PostgreSQL refuses just then is passed over by the caller."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

SCHEMA = """
create table m.wander (id int primary key, a int, b text not null default '', c int);
alter table m.wander replica identity full;
"""
NAMED_BACK = "alter table if exists m.wandered rename to wander"
"""What a server that was killed between two statements leaves to do."""
LAST = "insert into m.wander (id) select coalesce(max(id), 0) + 1 from m.wander"
"""A change that tells of the newest layout: those behind a DDL may have found no row."""
DAYS = ("2026-03-01", "2026-04-01")
FACTS = """
select c.relreplident, t.typname,
  coalesce((select array_agg(a.attname::text) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
    and not a.attisdropped and a.attname ~ '^x'), '{}'),
  (select count(*)::int from pg_constraint k where k.conrelid = c.oid and k.contype = 'p')
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'c' join pg_type t on t.oid = a.atttypid
where c.oid = 'm.wander'::regclass
"""

Do = Callable[..., None]


def change(random: Random, number: int, facts: tuple[str, str, list[str], int]) -> list[str]:
    """Statements of one change of layout, each in a transaction of its own; `facts` are the table's own."""
    identity, type_, more, keyed = facts
    swap = (("a", "swapped"), ("c", "a"), ("swapped", "c"))
    key = random.choice(["id", "id, b"])
    kinds = {
        "add": [f"alter table m.wander add column x{number} text"],
        "swap": ["; ".join(f"alter table m.wander rename {one} to {other}" for one, other in swap)],
        "type": [f"alter table m.wander alter c type {_other(type_)}"],
        "identity": [f"alter table m.wander replica identity {'default' if identity == 'f' else 'full'}"],
        "key": ["alter table m.wander drop constraint wander_pkey"]
        if keyed
        else [f"delete from m.wander; alter table m.wander add primary key ({key})"],
        "truncate": ["truncate m.wander, m.types"],
        "again": [f"drop table m.wander; {SCHEMA}"],
        "name": [
            "alter table m.wander rename to wandered",
            "insert into m.wandered (id, a) values (7777, 1) on conflict do nothing",
            NAMED_BACK,
        ],
        "partition": [
            "create table m.part_3 partition of m.part for values from ('{}') to ('{}')".format(*DAYS),
            f"insert into m.part values ({number}, '{DAYS[0]}', 'third')",
        ],
        "check": ["alter table m.coded add constraint short check (length(v) < 1000) not valid"],
    }
    for one in more[:1]:
        kinds["drop"] = [f'alter table m.wander drop column "{one}"']
        kinds["rename"] = [f'alter table m.wander rename "{one}" to "x{number} é"']
    return random.choice(list(kinds.values()))


def _other(type_: str) -> str:
    """A wider type, then one that needs a new baseline."""
    return {
        "int4": "bigint",
        "int8": "text using c::text",
        "text": "int using case when c ~ '^[0-9]{1,6}$' then c::int end",
    }[type_]


def write(random: Random, do: Do, key: int) -> None:
    """A change of the table's rows, whatever types and key it has."""
    number = str(random.randrange(10**6))
    match random.randrange(5):
        case 0 | 1:
            do("delete from m.wander where id = %s", key)
            do(
                "insert into m.wander (id, a, b, c) values (%s, %s, %s, %s)",
                key,
                number,
                random.choice("xyz"),
                number,
            )
        case 2:
            do("update m.wander set a = %s, c = null where id = %s", number, key)
        case 3:
            do("update m.wander set id = %s where id = %s", key + 40, key)
        case _:
            do("delete from m.wander where id = %s", key + 40)
