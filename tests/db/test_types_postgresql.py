"""PostgreSQL to PostgreSQL: a target's columns have the types that they have at the source, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.operate.table_commands import give
from tailrace.runtime import setup
from tailrace.state import lifecycle

from .test_model import drain

pytestmark = pytest.mark.db

COLUMNS = {
    "id": ("uuid primary key", "'00000000-0000-0000-0000-0000000000AB'"),
    "j": ("jsonb", """'{"b": [1, null], "a": "ü"}'"""),
    "js": ("json", '\'{ "a":1,  "a": 2}\''),
    "v": ("varchar(7)", "'abc'"),
    "c": ("char(5)", "'ab'"),
    "n": ("numeric", "'NaN'"),
    "p": ("numeric(9,3)", "1.5"),
    "big": ("numeric(60,2)", "123456789012345678901234567890123456789012345.67"),
    "i": ("int[]", "'{{1,NULL},{3,4}}'"),
    "t": ("text[]", """'{"a,b",NULL,"NULL",""}'"""),
    "vs": ("varchar(3)[]", "'{abc,d}'"),
    "b": ("bit(3)", "'101'"),
    "bs": ("bit varying(9)", "'10110'"),
    "h": ("interval", "'1 mon -2 days 00:00:00.5'"),
    "at": ("time(3)", "'24:00:00'"),
    "ip": ("inet", "'10.0.0.1/8'"),
    "r": ("tstzrange", "'[2026-01-01,infinity)'"),
    "m": ("int4multirange", "'{[1,3),[7,9)}'"),
    "xy": ("point", "'(1.5,-2)'"),
    "ts": ("tsvector", "'a:1 b:2'"),
    "mood": ("s.mood", "'sad'"),
    "moods": ("s.mood[]", "'{sad,ok}'"),
    "mail": ("s.mail", "'a@b'"),
    "who": ("name", "'me'"),
}
TEXTS = {"mood", "moods", "mail", "who"}
"""Columns that are text in the target."""
MODES = {"up": "upsert", "hard": "strict", "soft": "soft_delete", "kept": "archive", "bag": "upsert"}
COLS = ", ".join(f"{n} {kind}" for n, (kind, _) in COLUMNS.items())
ROW = ", ".join(value for _, value in COLUMNS.values())
TYPES = """
select attname::text, format_type(atttypid, atttypmod) from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped and attname not like 'header%%'
"""


def task_of(folder: Path, url: str, db: psycopg.Connection, *tables: str) -> Task:
    """A task from the schema s to the schema lake; each table has one row, each in a mode of its own."""
    db.execute("create schema s; create type s.mood as enum ('ok', 'sad'); create domain s.mail as text")
    for name in tables:
        cols = COLS.replace(" primary key", "") if name == "bag" else COLS
        db.execute(f"create table s.{name} ({cols}); alter table s.{name} replica identity full")
        db.execute(f"insert into s.{name} values ({ROW}), ({ROW.replace('AB', 'AC')})")
    file = folder / "shop.yaml"
    modes = "".join(f"  s.{n}: {{mode: {MODES[n]}}}\n" for n in tables)
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{url}', tables: [s.*]}}\ntarget: '{url}&schema=lake'\n"
        f"baseline: {{workers: 1}}\nkeylog: {{mode: all}}\ntables:\n{modes}"
    )
    return load(file)


def kinds(db: psycopg.Connection, table: str) -> dict[str, str]:
    return dict(db.execute(TYPES, (table,)).fetchall())


def rows(db: psycopg.Connection, table: str, names: str = ", ".join(COLUMNS)) -> list[Any]:
    where = "where _deleted is null" if table == "lake.soft" and SOFT in kinds(db, table) else ""
    return [r[0] for r in db.execute(f"select row({names})::text from {table} {where} order by 1").fetchall()]


SOFT = "_deleted"


@pytest.mark.slow
def test_a_baseline_brings_types_and_values(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    task = task_of(tmp_path, database, db, "up", "bag")
    Capture(task, once=True).run()
    for name in ("up", "bag"):
        want = {n: "text" if n in TEXTS else kind for n, kind in kinds(db, f"s.{name}").items()}
        assert kinds(db, f"lake.{name}") == want
        assert rows(db, f"lake.{name}") == rows(db, f"s.{name}")
    assert setup.validate_task(Path("shop.yaml"), task, (), timeout_s=60, samples=3).equal


@pytest.mark.slow
@pytest.mark.spark
def test_changes_come_in_every_mode(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    task = task_of(tmp_path, database, db, *MODES)
    drain(task, spark)
    # An older target, one that somebody made an enum of, and a constraint that makes each change be tried.
    db.execute("alter table lake.hard alter j type text, alter mood type s.mood using mood::s.mood")
    db.execute("alter table lake.up add check (v <> 'never')")
    for name in MODES:
        sets = "j = '[1]', i = '{5}', c = 'x', n = 'Infinity', h = '1 day', mood = 'ok', b = '000'"
        db.execute(f"update s.{name} set {sets} where id::text like '%ab'")
        db.execute(f"delete from s.{name} where id::text like '%ac'")
        db.execute(f"insert into s.{name} values ({ROW.replace('AB', 'AD')})")
        db.execute(f"update s.{name} set id = '{'0' * 32}' where id::text like '%ad'")
    drain(task, spark)
    for name in ("up", "hard", "soft", "bag"):
        assert rows(db, f"lake.{name}") == rows(db, f"s.{name}"), name
    assert (kinds(db, "lake.hard")["j"], kinds(db, "lake.hard")["mood"]) == ("text", "s.mood")
    assert len(rows(db, "lake.kept")) >= 4
    for name in MODES:
        db.execute(
            f"alter table s.{name} add more jsonb; insert into s.{name} values ({ROW.replace('AB', 'AE')})"
        )
    drain(task, spark)  # a rewrite makes the source forget which value older rows have
    for name in MODES:
        db.execute(f"alter table s.{name} alter v type varchar(9), alter i type bigint[]")
        db.execute(f"update s.{name} set v = 'ninechars', i = '{{{1 << 40}}}', more = '1' where c = 'x'")
    drain(task, spark)
    for name in ("up", "soft", "bag"):
        now = {n: kind for n, kind in kinds(db, f"lake.{name}").items() if n in ("v", "i", "more")}
        assert now == {"v": "character varying(9)", "i": "bigint[]", "more": "jsonb"}
        assert rows(db, f"lake.{name}", "id, v, i, more") == rows(db, f"s.{name}", "id, v, i, more"), name


@pytest.mark.slow
def test_values_that_the_source_has_cut_need_a_new_baseline(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create schema lake; create table s.up (id int primary key, v varchar(20))")
    db.execute("insert into s.up values (1, '0123456789abc')")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\n"
        f"target: '{database}&schema=lake'\nbaseline: {{workers: 1}}\n"
    )
    task = load(file)
    drain(task, None)
    db.execute("alter table s.up alter v type varchar(10) using v::varchar(10)")
    db.execute("insert into s.up values (2, 'new')")
    drain(task, None)
    why = lifecycle.of_task(task.commands_path, {}).waiting["s.up"].why
    assert why.startswith("older values do not fit") and '"v" TYPE character varying(10)' in why
    give(task, "resync", ["s.up"])
    drain(task, None)
    assert rows(db, "lake.up", "id, v") == rows(db, "s.up", "id, v") != []


@pytest.mark.slow
def test_an_empty_table_made_by_hand_is_filled_and_stays(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create schema lake; create type s.mood as enum ('ok', 'sad')")
    db.execute(
        "create table s.up (id int generated always as identity primary key, mood s.mood not null default 'ok',"
        " v varchar(9) check (v <> 'never')); insert into s.up (v) select 'v' || i from generate_series(1, 9) i"
    )
    db.execute(
        "create table lake.up (like s.up including all, mine text default 'kept'); create index on lake.up (v)"
    )
    oid = db.execute("select 'lake.up'::regclass::oid").fetchone()
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\n"
        f"target: '{database}&schema=lake'\nbaseline: {{workers: 1}}\n"
    )
    task = load(file)
    for more in ("", "insert into s.up (mood, v) values ('sad', 'new')"):
        if more:
            db.execute(more)
            give(task, "resync", ["s.up"])
        Capture(task, once=True).run()
        assert rows(db, "lake.up", "id, mood, v") == rows(db, "s.up", "id, mood, v")
    assert kinds(db, "lake.up") == {**kinds(db, "s.up"), "mine": "text"}
    assert db.execute("select distinct mine from lake.up").fetchall() == [("kept",)]
    assert db.execute("select 'lake.up'::regclass::oid").fetchone() == oid
    assert len(rows(db, "lake.up", "id")) == 10


@pytest.mark.slow
@pytest.mark.spark
def test_the_mark_of_deleted_rows_may_be_made_by_hand(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    """As a unique index on rows that live needs it; a new baseline keeps both."""
    db.execute("create schema s; create schema lake")
    db.execute("create table s.up (id int primary key, mail text unique); insert into s.up values (1, 'a')")
    db.execute("create table lake.up (id int primary key, mail text, gone text)")
    db.execute("create unique index on lake.up (mail) where gone is null")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\n"
        f"target: '{database}&schema=lake'\nbaseline: {{workers: 1}}\napply: {{soft_delete: gone}}\n"
    )
    task = load(file)
    drain(task, spark)
    found = "select id, mail, gone is null from lake.up order by id"
    assert db.execute(found).fetchall() == [(1, "a", True)]
    db.execute("delete from s.up; insert into s.up values (2, 'a')")
    drain(task, spark)
    assert db.execute(found).fetchall() == [(1, "a", False), (2, "a", True)]
    give(task, "resync", ["s.up"])
    drain(task, spark)
    db.execute("delete from s.up; insert into s.up values (3, 'a')")
    drain(task, spark)
    assert db.execute(found).fetchall() == [(2, "a", False), (3, "a", True)]
    assert db.execute(
        "select count(*) from pg_indexes where tablename = 'up' and schemaname = 'lake'"
    ).fetchone() == (2,)


def test_a_table_made_by_hand_may_have_wider_types_and_columns_with_defaults(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema s; create table s.up (id int primary key, n smallint, v varchar(9), c char(3))")
    db.execute("insert into s.up values (1, 2, 'x', 'y'); create schema lake")
    db.execute(
        "create table lake.up (id bigint primary key, n numeric(5), v varchar(20), c text, x int, y int not null default 7)"
    )
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\ntarget: '{database}&schema=lake'\n"
    )
    drain(load(file), spark)
    db.execute("insert into s.up values (2, 3, 'z', null); update s.up set n = 9 where id = 1")
    drain(load(file), spark)
    assert db.execute("table lake.up").fetchall() == [(2, 3, "z", None, None, 7), (1, 9, "x", "y  ", None, 7)]


def test_a_table_made_by_hand_may_include_columns_in_its_key(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.up (id int, v text, primary key (id) include (v))")
    db.execute("insert into s.up values (1, null); create schema lake")
    db.execute("create table lake.up (like s.up including all)")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\ntarget: '{database}&schema=lake'\n"
    )
    Capture(load(file), once=True).run()
    assert db.execute("table lake.up").fetchall() == [(1, None)]


REFUSED = {
    "(id int primary key)": "it has no column v (text)",
    "(id int primary key, v text); insert into lake.{} values (1, 'mine')": "has rows",
    "(id int, v text primary key)": "it has another primary key than (id), and no unique index on that",
    "(id int primary key, v text, gone int)": "column gone is integer, not text",
    "(id int primary key, v text, gone text not null)": "column gone is NOT NULL",
    "(id int primary key, v varchar(9))": "column v is character varying(9), not text",
    "(id smallint primary key, v text)": "column id is smallint, not integer",
    "(id int primary key, v text, x int not null)": "column x is NOT NULL, and the source does not have it",
    "(id int primary key, v text, gone text default '')": "column gone has a default",
}


def test_tables_that_cannot_be_filled_are_refused(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    names = {f"t{n}": made for n, made in enumerate(REFUSED)}
    db.execute("create schema s; create schema lake")
    for name, made in names.items():
        db.execute(f"create table lake.{name} {made.format(name)}")
        db.execute(
            f"create table s.{name} (id int primary key, v text); insert into s.{name} values (1, 'b')"
        )
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\ntarget: '{database}&schema=lake'\n"
        "apply: {soft_delete: gone}\n"
    )

    def kept() -> list[Any]:
        return [db.execute(f"table lake.{name}").fetchall() for name in names]

    before = kept()
    Capture(load(file), once=True).run()
    waiting = lifecycle.of_task(load(file).commands_path, {}).waiting
    for name, made in names.items():
        assert REFUSED[made] in waiting[f"s.{name}"].why, made
    assert kept() == before


@pytest.mark.slow
def test_settings_of_database_and_role_do_not_change_values(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """What a server has for people's sessions: a value is the same in the baseline, in changes and in validate."""
    odd = {
        "array_nulls": "off",
        "bytea_output": "escape",
        "client_encoding": "latin1",
        "datestyle": "German, DMY",
        "extra_float_digits": "-9",
        "intervalstyle": "sql_standard",
        "quote_all_identifiers": "on",
        "search_path": "s, public",
        "standard_conforming_strings": "off",
        "timezone": "'Asia/Tokyo'",
        "xmlbinary": "hex",
        "xmloption": "document",
    }
    names = "id int primary key, a text[], n int[], f float8, b bytea, d date, at timestamptz, i interval, r regclass"
    row = (
        r"""'{NULL,"NULL",a}', '{NULL,1}', 0.1::float8 + 0.2, '\x00ff5c', '2026-02-03', '2026-02-03 04:05:06+00',"""
        " '1 mon -2 days', 's.\"Odd\"'"
    )
    db.execute(f'create schema s; create table s."Odd" (id int); create table s.up ({names})')
    db.execute(f"insert into s.up values (1, {row})")
    for name, value in odd.items():
        db.execute(f"alter database {db.info.dbname} set {name} = {value}")  # type: ignore[arg-type]
    file = tmp_path / "odd.yaml"
    file.write_text(
        f"name: odd\nsource: {{url: '{database}', tables: [s.up]}}\ntarget: '{database}&schema=lake'\n"
    )
    task = load(file)
    drain(task, None)
    db.execute(f"insert into s.up values (2, {row}); update s.up set id = 3 where id = 1")
    drain(task, None)
    assert rows(db, "lake.up", "id, a, n, f, b, d, at, i, r") == rows(
        db, "s.up", "id, a, n, f, b, d, at, i, r::text"
    )
    assert setup.validate_task(file, task, (), timeout_s=60, samples=3).equal
