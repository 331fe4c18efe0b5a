"""Values that change at the source without a record in the log: rewritten columns, types whose text changes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tailrace.sources.postgresql.column_states import PERHAPS, RETEXTED, REWRITTEN

from .reading import Make

pytestmark = pytest.mark.db

CREATE = """
create type mood as enum ('sad', 'ok'); create type pair as (a int, b text); create domain feeling as mood;
create type nested as (m mood[], n int); create type moods as range (subtype = mood);
create table t (
  id int primary key, price numeric(9,2), note text default 'n', late text, m mood, p pair, f feeling, a mood[],
  x nested, r moods, d int generated always as (id + 1) stored);
alter table t add filled int not null default 7, add dropped int default 7;
create table k (m mood, p pair, id int, primary key (m, id));
create table every (m mood); alter table every replica identity full;
"""
TEXT = ["m", "f", "a", "x", "r"]
CASES: list[tuple[str, list[tuple[str, str, str, bool]]]] = [
    ("alter table t alter price type numeric(9,2) using price * 100", [("t", "price", REWRITTEN, True)]),
    ("alter table t alter note type text using note || '!', alter id set statistics 5",
     [("t", "note", REWRITTEN, True), ("t", "id", REWRITTEN, True)]),
    ("vacuum full t", []),
    ("alter table t alter price type float, alter note set not null", []),
    ("alter table t rename late to later; alter table t alter price type real", [("t", "later", PERHAPS, False)]),
    ("alter table t alter price set not null, alter note set default 'y'; alter table t rename later to late", []),
    ("alter table t add more float default random(), drop late", []),
    ("truncate t", []),
    ("alter type mood rename value 'ok' to 'fine'",
     [("every", "m", RETEXTED, True), ("k", "m", RETEXTED, True), *(("t", c, RETEXTED, False) for c in sorted(TEXT))]),
    ("alter type pair add attribute c int", [("k", "p", RETEXTED, False), ("t", "p", RETEXTED, False)]),
    ("alter type mood add value 'good'", []),
]  # fmt: skip
"""Statements, one after the other, and what each changes."""


def test_changes_without_log_records_are_noticed_in_the_catalog(db: psycopg.Connection, make: Make) -> None:
    db.execute(CREATE)
    source, tables = make(), ["public.t", "public.k", "public.every"]
    source.prepare(tables)
    for statements, want in CASES:
        first = source.column_states(tables, {})
        known: dict[str, dict[str, Any]] = {t: dict(one.state) for t, one in first.items()}
        assert not any(one.changed for one in first.values())
        assert source.column_states(tables, known) == {}
        for one in statements.split("; "):
            db.execute(one)  # type: ignore[call-overload]
        found = source.column_states(tables, known)
        told = sorted((t.removeprefix("public."), *c) for t, one in found.items() for c in one.changed)
        assert told == sorted(want), statements


@pytest.mark.since(17)
def test_new_expression_counts_where_the_column_is_published(db: psycopg.Connection, make: Make) -> None:
    db.execute(CREATE)
    source = make()
    source.prepare(["public.t"])
    known = {t: one.state for t, one in source.column_states(["public.t"], {}).items()}
    db.execute("alter table t alter d set expression as (id + 2)")
    told = source.column_states(["public.t"], known)["public.t"].changed
    published = db.info.server_version >= 180000
    assert [*told] == [("d", REWRITTEN, True)] * published
