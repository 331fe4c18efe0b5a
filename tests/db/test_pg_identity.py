"""Random DDL on a real server, read at once or much later: nothing is said of a column that is not so."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import load
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.change import Relation
from tailrace.sources.postgresql import column_identity
from tailrace.sources.postgresql.layout import UNKNOWN_COLUMN, UNKNOWN_VALUE
from tailrace.wire.records import Chunk

from ..examples import rounds
from .reading import Make, read_all

pytestmark = pytest.mark.db

TYPES = {
    "int": "42",
    "bigint": "43",
    "text": "'de'",
    "varchar": "'fe'",
    "numeric(8,2)": "7.25",
    "date": "'2026-01-02'",
}
NAMES = "abcde"
TABLES = 6


@dataclass(frozen=True)
class Truth:
    """A table just before one of its inserts: columns by number, and the values that its rows have."""

    columns: tuple[tuple[int, str], ...]
    values: dict[int, set[str | None]]


def truth(db: psycopg.Connection, table: str) -> Truth:
    columns = db.execute(
        "select attnum, attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
        " and not attisdropped order by 1",
        (table,),
    ).fetchall()
    values = {
        n: {r[0] for r in db.execute(f"select distinct {name}::text from {table}")} for n, name in columns
    }
    return Truth(tuple(columns), values)


def ddl(db: psycopg.Connection, rng: random.Random, table: str) -> None:
    there = [n for _, n in truth(db, table).columns if n != "id"]
    free = [n for n in NAMES if n not in there]
    name, kind = rng.choice(there or free), rng.choice(list(TYPES))
    new = rng.choice(free or [name])
    default = rng.choice(["", f" default {TYPES[kind]}", f" default {TYPES[kind]}"])
    add = f"alter table {table} add {new} {kind}{default}"
    words = {
        "add": add if free else "",
        "random": f"alter table {table} add {new} float default random()" if free else "",
        "drop": f"alter table {table} drop {name}" if there else "",
        "again": f"alter table {table} drop {name}, add {name} {kind}{default}" if there else "",
        "rename": f"alter table {table} rename {name} to {new}" if there and free else "",
        "swap": f"alter table {table} rename {name} to z; alter table {table} rename {new} to {name};"
        f" alter table {table} rename z to {new}" if there and not free and name != new else "",
        "retype": f"alter table {table} alter {name} drop default, alter {name} type {kind} using null" if there else "",
        "wider": f"alter table {table} alter {name} drop default, alter {name} type text" if there else "",
        "default": f"alter table {table} alter {name} drop default" if there else "",
        "full": f"cluster {table} using {table}_pkey",
    }  # fmt: skip
    weights = {"add": 4, "drop": 2, "again": 3, "rename": 2, "swap": 3}
    found = rng.choices(list(words), [weights.get(k, 1) for k in words])[0]
    if words[found]:
        db.execute(words[found])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(rounds(1)))
def test_columns_and_values_of_older_rows(
    db: psycopg.Connection, make: Make, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(column_identity, "EVERY_S", 0.0)
    names = [f"t{n}" for n in range(TABLES)]
    told: dict[str, list[Truth]] = {f"public.{n}": [] for n in names}
    for n in names:
        db.execute(
            f"create table {n} (id int primary key, a text, b text); insert into {n} values (0, '-', '.')"
        )
    source = make()
    source.prepare(list(told))
    first = [source.relation(t) for t in told]
    source.start(None, first)
    found: list[tuple[Relation, Truth]] = []
    for step in range(90):
        table = rng.choice(names)
        with db.transaction():
            for _ in range(rng.randint(1, 2)):
                if rng.random() < 0.5:
                    with db.transaction(force_rollback=rng.random() < 0.1):
                        ddl(db, rng, table)
                else:
                    told[f"public.{table}"].append(truth(db, table))
                    db.execute(f"insert into {table} (id) values ({len(told[f'public.{table}'])})")
        if step == 89 or (step % 30 < 15 and rng.random() < 0.7):  # else it stays behind
            chunks = read_all(source)
            found += [one for chunk in chunks for one in announced(chunk, told)]
            if chunks and rng.random() < 0.2:
                source.close()
                source = make()
                source.start(
                    chunks[-1].position,
                    list(({r.relid: r for r in first} | {r.relid: r for r, _ in found}).values()),
                )
    for one in first:
        check(one, [(r, t) for r, t in found if r.relid == one.relid])


def announced(chunk: Chunk, told: dict[str, list[Truth]]) -> Iterator[tuple[Relation, Truth]]:
    """The layouts of a chunk with the truth: that of the insert they come before, which its key names."""
    relids, data = chunk.records["RELID"].to_pylist(), chunk.records["DATA"].to_pylist()
    for index, relation in chunk.relations:
        at = relids.index(relation.relid, index)
        size = int.from_bytes(data[at][9:13], "big")
        yield relation, told[relation.table][int(data[at][13 : 13 + size]) - 1]


def check(before: Relation, found: list[tuple[Relation, Truth]]) -> None:
    real: dict[int, int] = {}
    for made, true in found:
        assert [c.name for c in made.columns] == [name for _, name in true.columns]
        had = {c.attnum for c in before.columns}
        for column, (number, _) in zip(made.columns, true.columns, strict=True):
            assert real.setdefault(column.attnum, number) == number, (column, found)
            assert column.attnum in (number, min(column.attnum, -1)), (column, number)
            if column.attnum not in had and column.note not in (UNKNOWN_COLUMN, UNKNOWN_VALUE):
                assert true.values[number] == {column.missing}, (column, true)
        before = made


@pytest.mark.slow
def test_the_relation_history_of_a_capture_that_stood_still(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(
        f"name: still\nhome: home\nsource: {{url: '{database}', tables: [public.a]}}\n"
        "target: {path: lake}\nbaseline: {workers: 1}\n"
    )
    task = load(file)
    db.execute("create table a (id int primary key); insert into a values (0)")
    Capture(task, once=True).run()
    for n, change in enumerate(
        ("add a int", "add n numeric(8,2) default 7.25", "drop a, add b int default 42", "rename n to m",
         "add d text not null default 'dé'", "drop d, add e text default 'which?'"), 1
    ):  # fmt: skip
        db.execute(f"alter table a {change}; insert into a (id) values ({n})")
    Capture(task, once=True).run()
    found = [one.relation for one in log.history(task.relations_path)["public.a"]]
    assert [[(c.name, c.attnum, c.missing) for c in r.columns[1:]] for r in found] == [
        [],
        [("a", 2, None)],
        [("a", 2, None), ("n", 3, "7.25")],
        [("n", 3, "7.25"), ("b", 4, "42")],
        [("m", 3, "7.25"), ("b", 4, "42")],
        [("m", 3, "7.25"), ("b", 4, "42"), ("d", -1, None)],  # `d`, or `e` under its first name
        [("m", 3, "7.25"), ("b", 4, "42"), ("e", -2, None)],
    ]
    ddl_history = lake.read(task.control_path("ddl_history")).to_pylist()
    told = [json.loads(r["DETAILS"])["columns"] for r in sorted(ddl_history, key=lambda r: r["CHANGE_SEQ"])]
    notes = [(name, c["note"]) for columns in told for name, c in columns.items() if "note" in c]
    assert notes == [("a", UNKNOWN_VALUE), ("d", UNKNOWN_COLUMN), ("e", UNKNOWN_COLUMN)]
    db.execute("insert into a (id) values (9)")
    Capture(task, once=True).run()
    (now,) = [one.relation for one in log.history(task.relations_path)["public.a"]][7:]
    assert [(c.name, c.attnum, c.note) for c in now.columns[3:]] == [("e", 6, UNKNOWN_VALUE)]
