"""PostgreSQL to PostgreSQL: NOT NULL, defaults and enums follow the source, and never refuse a change of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.apply.targets.postgresql.constraint_notes import ours
from tailrace.apply.targets.postgresql.layout import create
from tailrace.apply.targets.postgresql.place import Place, session
from tailrace.apply.targets.postgresql.progress import Progress
from tailrace.apply.targets.postgresql.refused import refuses
from tailrace.apply.targets.postgresql.relax import relax
from tailrace.apply.targets.postgresql.stage import Staged
from tailrace.apply.targets.postgresql.types import casts
from tailrace.apply.targets.postgresql.write import StagedWriter
from tailrace.capture import constraints
from tailrace.capture.constraints import ConstraintWatch
from tailrace.config.task import Task, load
from tailrace.engine.columns import KEPT, OP
from tailrace.model.change import Relation
from tailrace.sources.postgresql.catalog import relation
from tailrace.sources.postgresql.connect import connect

from .test_model import drain

pytestmark = pytest.mark.db

TABLE = """
create schema s; create type s.mood as enum ('low', 'high');
create table s.item (
    id int primary key, name text not null default 'new', price numeric(9,2) default 1.5, mood s.mood not null
    default 'low', number bigserial, at timestamptz default now())
"""


class World:
    """A source table, a task that copies it into the schema lake of the same database, and its target."""

    def __init__(self, folder: Path, url: str, db: psycopg.Connection, options: str) -> None:
        db.execute(TABLE.encode())
        file = folder / "shop.yaml"
        file.write_text(
            f"name: shop\nhome: home\nsource: {{url: '{url}', tables: [s.*]}}\n"
            f"target: {{database: '{url}&schema=lake', {options}}}\n"
        )
        self.task: Task = load(file)
        self.db, self.url = db, url
        self.place = Place.of(self.task.target.database)
        self.progress = Progress(self.place, "shop")
        self.watch = ConstraintWatch(self.task)
        with session(self.place, "here") as on:
            create(on, self.place, self.progress, self.relation)

    @property
    def relation(self) -> Relation:
        with connect(self.url) as source:
            return relation(source, "s.item", None, {})

    def look(self) -> None:
        for _ in range(3):  # once it is as it should be, nothing more happens
            self.watch.check()

    def write(self, *rows: tuple[Any, ...], partial: bool = False) -> None:
        """Brings rows into the target as a batch does: staged, room made, upserted."""
        of = self.relation
        extra = (OP, KEPT) if partial else (OP,)
        with session(self.place, "here") as on, on.transaction():
            cells = ", ".join(f"c{i} {'int' if c.key else 'text'}" for i, c in enumerate(of.columns))
            more = ", ".join(f'"{n}" text' for n in extra)
            on.execute(f"create temp table rows (mark bigint, {more}, {cells}) on commit drop".encode())
            for row in rows:
                on.execute(
                    f"insert into rows values ({', '.join(['%s'] * (len(row) + 1))})".encode(), (1, *row)
                )
            into = {**dict.fromkeys((2, 4), "numeric"), 5: "timestamptz"} | casts(on, "lake.item", of.columns)
            staged = Staged("pg_temp.rows", (1,), len(rows), extra, len(of.columns), into)
            relax(on, self.place, self.progress.target("s.item"), of, staged)
            StagedWriter(on, self.progress.target("s.item"), of, staged).upsert(partial=partial)

    @property
    def there(self) -> dict[str, tuple[str, bool, str | None]]:
        """Column -> type, NOT NULL, default, in the target."""
        query = """
            select attname::text, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
            from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
            where attrelid = 'lake.item'::regclass and attnum > 0 and not attisdropped"""
        return {r[0]: (r[1], r[2], r[3]) for r in self.db.execute(query.encode()).fetchall()}

    def checks(self) -> list[str]:
        query = "select pg_get_constraintdef(oid) from pg_constraint where conrelid = 'lake.item'::regclass"
        return [r[0] for r in self.db.execute(query + " and contype = 'c'").fetchall()]

    def labels(self) -> list[str]:
        return [r[0] for r in self.db.execute("select unnest(enum_range(null::lake.mood))::text").fetchall()]

    def refuses(self) -> bool:
        with session(self.place, "here") as on:
            return refuses(on, self.place, self.progress.target("s.item"), self.relation)


@pytest.fixture
def world(
    tmp_path: Path, database: str, db: psycopg.Connection, request: pytest.FixtureRequest
) -> Iterator[World]:
    yield World(tmp_path, database, db, request.param)


EVERYTHING = pytest.mark.parametrize("world", ["not_null: true, defaults: true, enums: type"], indirect=True)


@EVERYTHING
def test_a_target_declares_what_its_source_declares(world: World) -> None:
    assert world.there["name"] == ("text", False, None)
    world.look()
    assert world.there == {
        "id": ("integer", True, None),
        "name": ("text", True, "'new'::text"),
        "price": ("numeric(9,2)", False, "1.5"),
        "mood": ("lake.mood", True, "'low'::lake.mood"),
        "number": ("bigint", True, None),  # the sequence is the source's
        "at": ("timestamp with time zone", False, "now()"),
    }
    assert not world.refuses()  # batches still go the short way


@EVERYTHING
def test_what_the_source_alters_is_followed(world: World) -> None:
    world.look()
    world.db.execute(
        "alter table s.item alter name drop not null, alter name drop default, alter price set not null,"
        " alter at set default 'epoch'; alter type s.mood add value 'middle' before 'high'"
    )
    world.look()
    assert world.there["name"] == ("text", False, None)
    assert world.there["price"][1] and not world.there["at"][1]
    assert world.there["at"][2] == "'1970-01-01 00:00:00+00'::timestamp with time zone"
    assert world.labels() == ["low", "middle", "high"]


@EVERYTHING
def test_a_null_from_before_a_not_null_makes_room_for_itself(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.look()
    world.write(("U", 1, None, "2", "low", "1", None), ("D", 2, None, None, None, None, None))
    assert not world.there["name"][1] and world.there["mood"][1]
    with caplog.at_level(logging.WARNING):
        world.look()
    assert not world.there["name"][1]
    assert [r.message for r in caplog.records] == [
        "s.item: column name: its rows in the target have NULLs, so it gets no NOT NULL"
    ]
    world.db.execute("update lake.item set name = 'x'")
    ConstraintWatch(world.task).check()  # an hour later, or another process
    assert world.there["name"][1]


@EVERYTHING
def test_an_image_that_lacks_a_value_keeps_the_not_null_where_the_row_has_it(world: World) -> None:
    world.look()
    world.write(("U", 1, "a", "2", "low", "1", None))
    world.write(("U", "010000", 1, None, "3", "low", "1", None), partial=True)
    assert world.there["name"][1]
    world.write(("U", "010000", 9, None, "3", "low", "1", None), partial=True)  # there is no such row
    assert not world.there["name"][1]


@EVERYTHING
def test_a_label_that_the_target_does_not_know_yet_is_added(world: World) -> None:
    world.look()
    world.write(("U", 1, "a", "2", "it's", "1", None))
    assert world.labels() == ["low", "high", "it's"]
    assert world.db.execute("select mood::text from lake.item").fetchall() == [("it's",)]


@pytest.mark.parametrize("world", ["enums: check"], indirect=True)
def test_an_enum_as_text_with_a_check(world: World) -> None:
    world.look()
    assert world.there["mood"] == ("text", False, None)
    assert world.checks() == ["CHECK ((mood = ANY (ARRAY['low'::text, 'high'::text])))"]
    assert not world.refuses()
    world.write(("U", 1, "a", "2", "middle", "1", None))
    assert "'middle'" in world.checks()[0]
    with pytest.raises(psycopg.errors.CheckViolation):
        world.db.execute("update lake.item set mood = 'else'")
    world.db.execute("alter type s.mood add value 'top'")
    world.look()
    assert "'top'" in world.checks()[0] and "'middle'" in world.checks()[0]


@EVERYTHING
def test_what_others_gave_to_a_target_is_left_alone(world: World) -> None:
    world.db.execute("alter table lake.item alter price set not null, alter price set default 7")
    world.look()
    assert world.there["price"] == ("numeric(9,2)", True, "7")
    with session(world.place, "here") as on:
        assert "price" not in ours(on, world.place, world.progress.target("s.item"))[0]
    assert world.refuses()


@pytest.mark.parametrize("world", ["not_null: true"], indirect=True)
def test_a_target_that_somebody_reads_is_altered_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "_LOCK_WAIT", "50ms")
    with psycopg.connect(world.url) as reader:
        reader.execute("select * from lake.item")  # its transaction stays open
        world.look()
        assert not world.there["name"][1]
    world.look()
    assert world.there["name"][1]


@pytest.mark.slow
@pytest.mark.spark
def test_changes_of_a_task_are_never_refused_for_it(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    """A NULL from before a NOT NULL and a label from a moment ago, applied in bulk and under rules."""
    db.execute("create schema s; create type s.mood as enum ('low')")
    for name in ("bulk", "rules"):
        db.execute(f"create table s.{name} (id int primary key, v text not null, mood s.mood not null)")
        db.execute(f"insert into s.{name} values (1, 'a', 'low'), (2, 'b', 'low')")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: [s.*]}}\nbaseline: {{workers: 1}}\n"
        f"target: {{database: '{database}&schema=lake', not_null: true, enums: type}}\n"
        "keylog: {mode: all}\ntables: {s.rules: {mode: strict}}\n"
    )
    task = load(file)
    drain(task, spark)
    kinds = "select format_type(atttypid, -1), attnotnull from pg_attribute where attrelid = %s::regclass"
    kinds += " and attname in ('v', 'mood') order by attnum"
    for name in ("bulk", "rules"):
        assert db.execute(kinds, (f"lake.{name}",)).fetchall() == [("text", True), ("lake.mood", True)]
        db.execute(f"alter table s.{name} alter v drop not null; update s.{name} set v = null where id = 1")
        db.execute(f"delete from s.{name} where id = 1; alter table s.{name} alter v set not null")
        db.execute(f"insert into s.{name} values (3, 'c', 'low')")
    db.execute("alter type s.mood add value 'high'")
    for name in ("bulk", "rules"):
        db.execute(
            f"update s.{name} set mood = 'high' where id = 2; alter table s.{name} alter v drop not null"
        )
        db.execute(f"insert into s.{name} values (4, null, 'high')")
    drain(task, spark)
    for name in ("bulk", "rules"):
        rows = [db.execute(f"table {schema}.{name} order by id").fetchall() for schema in ("s", "lake")]
        assert rows[0] == rows[1] == [(2, "b", "high"), (3, "c", "low"), (4, None, "high")]
        assert db.execute(kinds, (f"lake.{name}",)).fetchall()[0] == ("text", False)
