"""Random histories on a real PostgreSQL, and a plain-Python reading of change tables."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model import mask
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import number_of
from tailrace.store.tables import kept_as, plain_name

Row = dict[str, Any]

SCHEMA = """
create schema m;
create table m.keyed (id int primary key, name text, big text, n numeric(10,2), at timestamptz);
alter table m.keyed alter big set storage external;
create table m.whole (id int primary key, v text, w int);
alter table m.whole replica identity full;
create table m.bag (a int, b text);
alter table m.bag replica identity full;
create table m.part (id int, day date, v text, primary key (id, day)) partition by range (day);
create table m.part_1 partition of m.part for values from ('2026-01-01') to ('2026-02-01');
create table m.part_2 partition of m.part for values from ('2026-02-01') to ('2026-03-01');
create table m.coded (id int primary key, code text not null unique, v text);
alter table m.coded replica identity using index coded_code_key;
create table m.log (a int, b text);
alter table m.log replica identity full;
"""
TABLES = ["m.keyed", "m.whole", "m.bag", "m.part", "m.coded", "m.log"]
LONG = 9000


class Writer:
    """Makes random transactions; what a statement may violate (a key that exists) just rolls back."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.session = psycopg.connect(url, autocommit=True)
        self.columns = 0
        self.wide = False

    def transactions(self, count: int) -> None:
        for _ in range(count):
            with suppress(psycopg.errors.IntegrityError), self.session.transaction():
                for _ in range(self.random.choice([1, 1, 2, 5, 12])):
                    self._statement()
                if self.random.random() < 0.07:
                    raise psycopg.Rollback

    def _statement(self) -> None:
        table = self.random.choice(TABLES)
        if self.random.random() < 0.1:
            with suppress(psycopg.errors.IntegrityError, _Undo), self.session.transaction():
                self._change(table)
                raise _Undo
            return
        self._change(table)

    def _change(self, table: str) -> None:
        getattr(self, table.replace("m.", "_"))()

    def _do(self, text: str, *values: object) -> None:
        self.session.execute(text, values)  # type: ignore[arg-type]

    def _id(self) -> int:
        return self.random.randrange(40)

    def _word(self) -> str | None:
        return self.random.choice([None, "", "x", "NULL", "ünï\n\t\\,\"'", str(self.random.random())])

    def _keyed(self) -> None:
        match self.random.randrange(12):
            case 0 | 1 | 2:
                self._do(
                    "insert into m.keyed (id, name, big, n, at) values (%s,%s,%s,%s,now()) on conflict (id) do nothing",
                    self._id(), self._word(), self.random.choice("abc") * LONG, self.random.randrange(999) / 4,
                )  # fmt: skip
            case 3 | 4:
                self._do("update m.keyed set name=%s where id=%s", self._word(), self._id())
            case 5:
                self._do(
                    "update m.keyed set big=%s where id < %s",
                    self.random.choice("de") * LONG,
                    self._id() // 4,
                )
            case 6 | 7:
                self._do("update m.keyed set id=%s where id=%s", self._id(), self._id())
            case 8:
                self._swap()
            case 9 | 10:
                self._do("delete from m.keyed where id=%s", self._id())
            case _:
                if self.random.random() < 0.15:
                    self._do("truncate m.keyed")

    def _swap(self) -> None:
        one, other = self._id(), self._id()
        for old, new in ((one, -1), (other, one), (-1, other)):
            self._do("update m.keyed set id=%s where id=%s", new, old)

    def _whole(self) -> None:
        match self.random.randrange(7):
            case 0 | 1:
                self._do(
                    "insert into m.whole (id, v, w) values (%s,%s,%s) on conflict (id) do nothing",
                    self._id(), self._word(), self._id(),
                )  # fmt: skip
            case 2:
                self._do("update m.whole set v=%s where id=%s", self._word(), self._id())
            case 3:
                self._do("update m.whole set v=v where id < %s", self._id() // 4)
            case 4:
                self._do("update m.whole set id=%s, w=null where id=%s", self._id(), self._id())
            case 5:
                self._do("delete from m.whole where id=%s", self._id())
            case _:
                if self.random.random() < 0.15:
                    self._do("truncate m.whole, m.bag")

    def _bag(self) -> None:
        match self.random.randrange(4):
            case 0 | 1:
                for _ in range(self.random.randrange(1, 3)):
                    self._do("insert into m.bag values (%s,%s)", self.random.randrange(4), self._word())
            case 2:
                self._do(
                    "update m.bag set a=%s where a=%s", self.random.randrange(4), self.random.randrange(4)
                )
            case _:
                self._do("delete from m.bag where ctid in (select ctid from m.bag limit 1)")

    def _part(self) -> None:
        day = f"2026-0{self.random.choice([1, 2])}-1{self.random.randrange(3)}"
        match self.random.randrange(4):
            case 0 | 1:
                self._do(
                    "insert into m.part values (%s,%s,%s) on conflict do nothing",
                    self._id() // 4,
                    day,
                    self._word(),
                )
            case 2:  # moves between partitions
                self._do("update m.part set day=%s where id=%s", day, self._id() // 4)
            case _:
                self._do("delete from m.part where id=%s", self._id() // 4)

    def _coded(self) -> None:
        match self.random.randrange(5):
            case 0 | 1:
                self._do(
                    "insert into m.coded values (%s,%s,%s) on conflict do nothing",
                    self._id(), f"c{self._id()}", self._word(),
                )  # fmt: skip
            case 2:
                self._do("update m.coded set code=%s where id=%s", f"c{self._id()}", self._id())
            case 3:
                self._do("update m.coded set id=%s where id=%s", self._id(), self._id())
            case _:
                self._do("delete from m.coded where code=%s", f"c{self._id()}")

    def _log(self) -> None:
        self._do("insert into m.log values (%s,%s)", self._id(), self._word())

    def alter(self) -> None:
        """One layout change, and a change after it: the stream tells of a layout with the next row only."""
        self.columns += 1
        match self.columns % 5:
            case 1:
                self._do(f"alter table m.keyed add column c{self.columns} int default {self.columns}")
                self._do(
                    "insert into m.keyed (id, name) values (1000, 'added') on conflict (id) do update set name='again'"
                )
            case 2:
                self._do("alter table m.whole alter w type bigint")
                self._do(
                    "insert into m.whole (id, w) values (1000, 5000000000) on conflict (id) do update set w=6000000000"
                )
            case 3:
                self._do(f"alter table m.keyed rename c{self.columns - 2} to r{self.columns}")
                self._do(f"update m.keyed set r{self.columns}=77 where id=1000")
            case 4:
                self._do(f"alter table m.keyed drop column r{self.columns - 1}")
                self._do("update m.keyed set name='dropped' where id=1000")
            case _:
                self._do(f"alter table m.bag add column t{self.columns} text")
                self._do(f"insert into m.bag (a, t{self.columns}) values (1, 'new')")

    def rows(self, table: str) -> list[Row]:
        """The rows the source has now."""
        schema, name = table.split(".")
        with self.session.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            cursor.execute("set timezone = 'UTC'")
            return cursor.execute(sql.SQL("select * from {}").format(sql.Identifier(schema, name))).fetchall()


class _Undo(Exception):  # noqa: N818 - not an error
    pass


def bag(rows: Sequence[Row]) -> list[tuple[tuple[str, str], ...]]:
    """Rows as a sorted multiset that two sides can be compared by."""
    return sorted(tuple(sorted((k, _plain(v)) for k, v in r.items())) for r in rows)


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


def replay(
    change_table: str, history: Sequence[log.Layout], start: Sequence[Row], position: str
) -> list[Row]:
    """Reads a change table one row at a time, as the plainest consumer would, from the start state that the
    table had at a position on."""
    table = lake.read(change_table)
    names = table.column_names
    changes = sorted(
        (r for r in table.to_pylist() if r["header__stream_position"] >= position),
        key=lambda r: (r["header__change_seq"], r["header__change_oper"]),
    )
    coming = list(history)
    layout = coming.pop(0).relation
    state = _Rows(layout, start)
    before: Row | None = None
    for change in changes:
        while coming and coming[0].from_seq <= change["header__change_seq"]:
            state = _Rows(coming[0].relation, _relayout(layout, coming[0].relation, state.all()))
            layout = coming.pop(0).relation
        number = number_of(change["header__change_seq"])
        stored = {c.name: kept_as(names, c.name, number) for c in layout.columns}
        oper, image = change["header__change_oper"], {name: change[at] for name, at in stored.items()}
        carried = change["header__column_mask"]
        have = set(image) if carried is None else {plain_name(names[n]) for n in mask.decode(carried)}
        if oper == "T":
            state = _Rows(layout, [])
        elif oper == "B":
            before = image
            continue
        elif oper == "I":
            state.add(image)
        else:
            old = state.take(before if before is not None else image)
            if oper != "D":
                state.add({k: image[k] if k in have else old[k] for k in image})
        before = None
    rows = state.all()
    for rest in coming:
        rows, layout = _relayout(layout, rest.relation, rows), rest.relation
    return rows


class _Rows:
    """Rows by their keys; where there is no key, by all that they are."""

    def __init__(self, layout: Relation, rows: Sequence[Row]) -> None:
        self._key = layout.key or [c.name for c in layout.columns]
        self._rows: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            self.add(dict(row))

    def add(self, row: Row) -> None:
        self._rows.setdefault(tuple(row[k] for k in self._key), []).append(row)

    def take(self, like: Row) -> Row:
        """Takes one out; KeyError when none is there."""
        key = tuple(like[k] for k in self._key)
        row = self._rows[key].pop()
        if not self._rows[key]:
            del self._rows[key]
        return row

    def all(self) -> list[Row]:
        return [row for rows in self._rows.values() for row in rows]


def _relayout(old: Relation, new: Relation, rows: Sequence[Row]) -> list[Row]:
    by_attnum = {c.attnum: c for c in old.columns}
    return [{c.name: _as_now(row, by_attnum.get(c.attnum), c) for c in new.columns} for row in rows]


def _as_now(row: Row, old: Column | None, new: Column) -> Any:
    """The value that a row has in a column, once the column is as in the new layout."""
    if old is None:
        return int(new.missing) if new.missing else None
    value = row[old.name]
    return str(value) if value is not None and new.type == "string" != old.type else value


def histories(relations: str) -> Iterator[tuple[str, list[log.Layout]]]:
    """Table name and layouts, in order."""
    by_table: dict[str, list[log.Layout]] = {}
    for one in log.layouts(relations):
        by_table.setdefault(one.relation.table, []).append(one)
    yield from by_table.items()
