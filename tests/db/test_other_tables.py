"""One task name has one target of a table."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from tailrace.apply.checks.adoption import adoption_findings
from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import ApplyError
from tailrace.model.types import schema_of
from tailrace.sources import open_source
from tailrace.state import commands
from tailrace.targets.multi_source import TargetLocation
from tailrace.targets.postgresql import layout
from tailrace.targets.postgresql.connection import Database, locked_session
from tailrace.targets.postgresql.load import PostgresLanding
from tailrace.targets.postgresql.progress import ProgressTable
from tailrace.testing.images import RELATION, image

pytestmark = pytest.mark.db


@pytest.fixture
def place(database: str) -> Database:
    return Database.of(f"{database}&schema=lake")


def lands(place: Database, *keys: int) -> None:
    """A baseline of these keys becomes the target."""
    landing = PostgresLanding(place, "t").begin(RELATION)
    rows = [{**image(k, "x"), "Wide_Word": None} for k in keys]
    sent = landing.part(RELATION)
    sent.write(pa.RecordBatch.from_pylist(rows, schema_of(RELATION.columns)))
    sent.close()
    landing.commit(RELATION, [], max(keys))


@pytest.fixture
def task(tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    """A task with baselines of two tables."""
    db.execute("create schema s; create schema lake; create table s.a (id int primary key, v text not null)")
    db.execute("insert into s.a values (1, 'x'); create table s.b (id int primary key)")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: ['s.*']}}\n"
        f"target: '{database}&schema=lake'\n"
    )
    made = load(file)
    Capture(made, once=True).run()
    return made


def test_a_place_besides_that_of_the_targets_is_found_before_a_run(task: Task) -> None:
    """Of a target that is yet to come, too."""
    file = task.folder / "shop.yaml"
    file.write_text(file.read_text().replace("schema=lake", "schema=new"))
    moved, source = load(file), open_source(task)
    try:
        found = adoption_findings(moved, ["s.a", "s.b"], source.relation)
        commands.give(task.commands_path, commands.RENAME, ["s.b"], why="", who="ddl", target="s.bee")
        assert adoption_findings(moved, ["s.b"], source.relation) == []  # it may have either name
    finally:
        source.close()
    assert [(f.level, f.where, f.what.partition(", ")[0]) for f in found] == [
        ("error", f"s.{name}", f'the target of s.{name} under the name shop is "lake"."{name}"')
        for name in "ab"
    ]


def test_one_name_has_one_target_of_a_table(database: str, place: Database, db: psycopg.Connection) -> None:
    """Two tasks of one name, or one whose targets go elsewhere from now on."""
    lands(place, 1, 2)
    elsewhere = Database.of(f"{database}&schema=other")
    running = PostgresLanding(place, "t").begin(RELATION)  # of the first task
    with pytest.raises(ApplyError, match="two targets cannot share") as told:
        lands(elsewhere, 7)
    assert told.value.what == (
        'the target of shop.item under the name t is "lake"."item", not "other"."item": two targets cannot '
        "share a progress row"
    )
    running.commit(RELATION, [], 3)  # its rows are still there
    progress = ProgressTable(elsewhere, "t", lambda _: TargetLocation("shop.item", {"v": "x"}))
    with locked_session(elsewhere, "t", RELATION.table) as on:
        with pytest.raises(ApplyError, match="two targets cannot share"):
            layout.create(on, elsewhere, progress, RELATION)
        assert on.execute("select to_regclass('other.item')").fetchone() == (None,)
    with locked_session(place, "t", RELATION.table) as on:
        found = ProgressTable(place, "t").read(on, RELATION.table)
    assert found is not None and found.number == 3
    db.execute((told.value.hint or "").partition("as it is: ")[2].encode())
    lands(elsewhere, 7)
    assert db.execute("table other.item").fetchall() == [(7, "x", None)]
    with pytest.raises(ApplyError, match="two targets cannot share"):
        lands(place, 1)
    db.execute("drop table other.item; drop table lake.item")
    lands(place, 1)
    assert db.execute("select id from lake.item").fetchall() == [(1,)]
