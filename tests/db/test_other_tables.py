"""Somebody puts another table under the name of a target: it is left alone, and whoever meets it says so. And
one name has one target of a table."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from tailrace.capture.constraints import ConstraintWatch
from typer.testing import CliRunner

from tailrace.apply.adoption_checks import adoption_findings
from tailrace.apply.mapping.shared_rows import TargetPlace
from tailrace.apply.needs import NOTHING, Needs
from tailrace.apply.targets.postgresql import layout, relid_column
from tailrace.apply.targets.postgresql.place import Place, locked
from tailrace.apply.targets.postgresql.progress import Progress, Reached
from tailrace.apply.targets.postgresql.rename import rename
from tailrace.apply.targets.postgresql.snapshot_sink import PostgresLanding
from tailrace.capture.process import Capture
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import ApplyError, OtherTableError
from tailrace.model.types import schema_of
from tailrace.operate import ordering
from tailrace.operate.checks import gone_findings
from tailrace.sources import open_source
from tailrace.state import orders
from tailrace.testing.images import RELATION, image
from tailrace.validate.postgresql_side import hold

from .test_shared_postgresql import part

pytestmark = pytest.mark.db

ANOTHER = "alter table lake.item rename to was; create table lake.item (mine text); insert into lake.item values ('x')"
IS_ANOTHER = r'"lake"\."item" is another table than the target'


@pytest.fixture
def place(database: str) -> Place:
    return Place.of(f"{database}&schema=lake")


def lands(place: Place, *keys: int) -> None:
    """A baseline of these keys becomes the target."""
    landing = PostgresLanding(place, "t").begin(RELATION)
    rows = [{**image(k, "x"), "Wide_Word": None} for k in keys]
    sent = landing.part(RELATION)
    sent.write(pa.RecordBatch.from_pylist(rows, schema_of(RELATION.columns)))
    sent.close()
    landing.commit(RELATION, [], max(keys))


def reached(place: Place, *, goes_on: bool = False) -> Reached | None:
    progress = Progress(place, "t")
    with locked(place, "t", RELATION.table) as on:
        return (progress.to_go_on if goes_on else progress.read)(on, RELATION.table)


def noted(db: psycopg.Connection) -> bool:
    """Whether the number of `lake.item` is in its row of progress."""
    query = "select relid = to_regclass('lake.item') from tailrace.tailrace_progress"
    return db.execute(query).fetchall() == [(True,)]


def test_a_baseline_leaves_another_table_alone(place: Place, db: psycopg.Connection) -> None:
    lands(place, 1, 2)
    late = PostgresLanding(place, "t").begin(RELATION)
    db.execute(ANOTHER)
    with pytest.raises(OtherTableError, match=IS_ANOTHER) as told:
        lands(place, 1, 3)
    with pytest.raises(OtherTableError, match=IS_ANOTHER):
        late.commit(RELATION, [], 3)
    with pytest.raises(OtherTableError, match=IS_ANOTHER):
        late.drop(RELATION.table)
    assert db.execute("select mine from lake.item").fetchall() == [("x",)]
    assert db.execute("select id from lake.was").fetchall() == [(1,), (2,)]
    assert told.value.where == f"{place.label}, {RELATION.table}"
    hint = (told.value.hint or "").partition("say): ")[2]
    assert hint == ('UPDATE "tailrace"."tailrace_progress" SET relid = NULL WHERE target = \'"lake"."item"\'')
    db.execute("drop table lake.item")  # it is moved away: the table is new
    lands(place, 1, 3)
    assert db.execute("select id from lake.item order by 1").fetchall() == [(1,), (3,)]
    assert noted(db)


def test_what_is_declared_to_be_the_target_is(place: Place, db: psycopg.Connection) -> None:
    """As after a restored dump, where every table has another number."""
    lands(place, 1, 2)
    db.execute("create table lake.copy (like lake.item including all); insert into lake.copy table lake.item")
    db.execute("drop table lake.item; alter table lake.copy rename to item")
    with pytest.raises(OtherTableError) as told:
        reached(place)
    db.execute((told.value.hint or "").partition("say): ")[2].encode())
    found = reached(place, goes_on=True)
    assert found is not None and (found.upto, found.noted) == (2, False)
    assert noted(db)
    lands(place, 1, 3)
    assert db.execute("select id from lake.item order by 1").fetchall() == [(1,), (3,)]
    assert noted(db)


def test_what_keeps_the_number_keeps_the_target(place: Place, db: psycopg.Connection) -> None:
    lands(place, 1, 2)
    for done in (
        "vacuum full lake.item",
        "truncate lake.item",
        "alter table lake.item alter v type varchar(9)",
    ):
        db.execute(done.encode())
        assert reached(place) is not None
    with locked(place, "t", RELATION.table) as on, on.transaction():
        rename(on, place, "t", RELATION.table, RELATION.table, "shop.other")
    progress = Progress(place, "t", lambda _: TargetPlace("shop.other"))
    with locked(place, "t", RELATION.table) as on:
        assert progress.read(on, RELATION.table) is not None
    assert reached(place) is None  # that name is nobody's
    db.execute("drop table lake.other")
    with locked(place, "t", RELATION.table) as on:
        assert progress.read(on, RELATION.table) is None


def test_progress_of_an_earlier_release_goes_on(
    place: Place, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lands(place, 1, 2)
    db.execute("alter table tailrace.tailrace_progress drop relid")
    with psycopg.connect(place.url) as other:  # which holds it: it is not waited for
        other.execute("table tailrace.tailrace_progress")
        assert reached(place, goes_on=True) == reached(place)
    monkeypatch.setattr(relid_column, "AGAIN_S", 0.0)  # a minute later
    found = reached(place, goes_on=True)
    assert found is not None and (found.upto, found.noted) == (2, False)
    assert noted(db)
    db.execute(ANOTHER)
    with pytest.raises(OtherTableError, match=IS_ANOTHER):
        reached(place, goes_on=True)


@pytest.mark.parametrize("without", ["part", "part, drop adopted, drop relid"])
def test_a_target_of_an_earlier_release_can_be_dropped(
    place: Place, db: psycopg.Connection, without: str
) -> None:
    lands(place, 1, 2)
    db.execute(f"alter table tailrace.tailrace_progress drop {without}".encode())
    PostgresLanding(place, "t").drop(RELATION.table)
    assert db.execute("select to_regclass('lake.item')").fetchall() == [(None,)]
    assert db.execute("table tailrace.tailrace_progress").fetchall() == []


@pytest.mark.parametrize("older", [False, True])
def test_who_may_not_alter_the_progress_goes_on(
    place: Place, db: psycopg.Connection, caplog: pytest.LogCaptureFixture, older: bool
) -> None:
    lands(place, 1, 2)
    db.execute("alter table tailrace.tailrace_progress drop relid")
    if older:
        db.execute("alter table tailrace.tailrace_progress drop adopted")
    role = f"r{db.info.dbname}"
    db.execute(f"create role {role}; grant usage on schema tailrace to {role}".encode())
    db.execute(f"grant select, insert, update, delete on all tables in schema tailrace to {role}".encode())
    progress = Progress(place, "t")
    with locked(place, "t", RELATION.table) as on:
        on.execute(f"set role {role}".encode())
        for _ in range(2):
            assert progress.to_go_on(on, RELATION.table) is not None
        if not older:
            with on.transaction():  # a new baseline, too
                progress.prepare(on)
                progress.begin(on, RELATION.table, RELATION, 7)
        found = progress.read(on, RELATION.table)
        assert found is not None and (found.upto, found.noted) == (2 if older else 7, False)
    (said,) = [r.getMessage() for r in caplog.records]
    assert said.endswith('ALTER TABLE "tailrace"."tailrace_progress" ADD COLUMN relid oid')
    db.execute(f"drop owned by {role}; drop role {role}".encode())


def test_whoever_uses_the_progress_for_long_is_not_waited_for(
    place: Place, db: psycopg.Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a validation does, in its one transaction."""
    lands(place, 1, 2)
    db.execute("alter table tailrace.tailrace_progress drop relid")
    progress = Progress(place, "t")
    with locked(place, "t", RELATION.table) as on:
        with psycopg.connect(database) as reader:
            reader.execute("select * from tailrace.tailrace_progress").fetchall()
            began = time.monotonic()
            assert progress.to_go_on(on, RELATION.table) is not None
            with on.transaction():
                progress.prepare(on)  # not tried again so soon
                assert on.execute("show lock_timeout").fetchone() == ("0",)
                progress.begin(on, RELATION.table, RELATION, 7)
            assert time.monotonic() - began < 5
        monkeypatch.setattr(relid_column, "AGAIN_S", 0.0)
        assert progress.to_go_on(on, RELATION.table) is not None
        found = progress.read(on, RELATION.table)
        assert found is not None and found.noted


def test_another_table_is_not_renamed(place: Place, db: psycopg.Connection) -> None:
    lands(place, 1, 2)
    db.execute(ANOTHER)
    with (
        pytest.raises(OtherTableError, match=IS_ANOTHER),
        locked(place, "t", RELATION.table) as on,
        on.transaction(),
    ):
        rename(on, place, "t", RELATION.table, RELATION.table, "shop.other")
    assert db.execute("select mine from lake.item").fetchall() == [("x",)]


def test_no_source_comes_to_another_table(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    part(tmp_path, database, 0)
    db.execute('alter table "all".t rename to was; create table "all".t (like "all".was including all)')
    with pytest.raises(OtherTableError, match=r'"all"\."t" is another table'):
        part(tmp_path, database, 1)


@pytest.fixture
def task(tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    """A task with baselines of two tables, one of which is not the target any more."""
    db.execute("create schema s; create schema lake; create table s.a (id int primary key, v text not null)")
    db.execute("insert into s.a values (1, 'x'); create table s.b (id int primary key)")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: ['s.*']}}\n"
        f"target: {{database: '{database}&schema=lake', not_null: true}}\n"
    )
    made = load(file)
    Capture(made, once=True).run()
    db.execute("alter table lake.a rename to was; create table lake.a (like s.a including all)")
    db.execute("alter table lake.a alter v drop not null; insert into lake.a values (7, 'mine')")
    return made


def test_a_place_besides_that_of_the_targets_is_found_before_a_run(task: Task) -> None:
    """Of a target that is yet to come, too."""
    file = task.folder / "shop.yaml"
    file.write_text(file.read_text().replace("schema=lake", "schema=new"))
    moved, source = load(file), open_source(task)
    try:
        found = adoption_findings(moved, ["s.a", "s.b"], source.relation)
        orders.give(task.orders_path, orders.RENAME, ["s.b"], why="", who="ddl", target="s.bee")
        assert adoption_findings(moved, ["s.b"], source.relation) == []  # it may have either name
    finally:
        source.close()
    assert [(f.level, f.where, f.what.partition(", ")[0]) for f in found] == [
        ("error", "s.b", 'the target of s.b under the name shop is "lake"."b"')
    ]


def test_a_task_leaves_another_table_alone(task: Task, db: psycopg.Connection) -> None:
    source = open_source(task)
    try:
        (found,) = adoption_findings(task, ["s.a", "s.b"], source.relation)
    finally:
        source.close()
    assert (found.level, found.where) == ("error", "s.a")
    assert found.what.startswith('"lake"."a" is another table than the target')
    assert gone_findings(task, ["s.a", "s.b"]) == []
    assert [n.after for n in Needs(task).of("s.a")] == [NOTHING]
    with hold(task, ["s.a", "s.b"]) as held:
        assert held is not None and list(held.tables) == ["s.b"]
        with pytest.raises(OtherTableError):
            held.table("s.a")
    ConstraintWatch(task).look()
    with pytest.raises(OtherTableError):
        ordering.order(task, orders.REMOVE, ["s.a"], drop_target=True)
    for words in ([], ["--yes"]):
        done = CliRunner().invoke(app, ["drop", str(task.folder / "shop.yaml"), "--targets", *words])
        assert isinstance(done.exception, OtherTableError) or "is another table" in done.output
    assert Path(task.log_path).is_dir()
    columns = (
        "select attname, attnotnull from pg_attribute where attrelid = 'lake.a'::regclass and attnum > 0"
    )
    assert db.execute(columns).fetchall() == [("id", True), ("v", False)]
    assert db.execute("table lake.a").fetchall() == [(7, "mine")]
    assert db.execute("select to_regclass('lake.b') is not null").fetchone() == (True,)


@pytest.mark.slow
def test_a_resync_suspends_the_table_until_the_other_table_is_gone(
    task: Task, db: psycopg.Connection
) -> None:
    orders.give(task.orders_path, orders.RESYNC, ["s.a"], why="", who="me")
    Capture(task, once=True).run()
    state = orders.of_task(task.orders_path, {})["s.a"]
    assert state.held == "suspended" and '"lake"."a" is another table' in state.why
    assert db.execute("table lake.a").fetchall() == [(7, "mine")]
    db.execute("alter table lake.a rename to mine")
    Capture(task, once=True).run()
    assert db.execute("table lake.a").fetchall() == [(1, "x")]


def test_one_name_has_one_target_of_a_table(database: str, place: Place, db: psycopg.Connection) -> None:
    """Two tasks of one name, or one whose targets go elsewhere from now on."""
    lands(place, 1, 2)
    elsewhere = Place.of(f"{database}&schema=other")
    running = PostgresLanding(place, "t").begin(RELATION)  # of the first task
    with pytest.raises(ApplyError, match="two targets cannot share") as told:
        lands(elsewhere, 7)
    assert told.value.what == (
        'the target of shop.item under the name t is "lake"."item", and not "other"."item": two targets cannot '
        "share a row of progress"
    )
    running.commit(RELATION, [], 3)  # its rows are still there
    progress = Progress(elsewhere, "t", lambda _: TargetPlace("shop.item", {"v": "x"}))
    with locked(elsewhere, "t", RELATION.table) as on:
        with pytest.raises(ApplyError, match="two targets cannot share"):
            layout.create(on, elsewhere, progress, RELATION)
        assert on.execute("select to_regclass('other.item')").fetchone() == (None,)
    found = reached(place)
    assert found is not None and found.upto == 3
    db.execute((told.value.hint or "").partition("as it is: ")[2].encode())
    lands(elsewhere, 7)
    assert db.execute("table other.item").fetchall() == [(7, "x", None)]
    with pytest.raises(ApplyError, match="two targets cannot share"):
        lands(place, 1)
    db.execute("drop table other.item; drop table lake.item")
    lands(place, 1)
    assert db.execute("select id from lake.item").fetchall() == [(1,)]
