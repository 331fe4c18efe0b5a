"""A slot that is gone, was given up, is somebody else's: said, never passed over; and the way back."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.capture import baselines as capture_baselines
from tailrace.capture.process import Capture
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError, SourceError
from tailrace.lake import delta as lake
from tailrace.lake import json_files
from tailrace.sources.postgresql import checks, slot, transaction_wait
from tailrace.sources.postgresql.slot import published
from tailrace.sources.postgresql.source import PostgresSource
from tailrace.state import capture_state, commands, lifecycle, streams
from tailrace.state.baselines import read_baselines

from .test_model import drain
from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db

SLOT = "tailrace_shop"
ANEW = "tailrace resync TASK --new-stream"


@pytest.fixture
def shop(tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    """A task for s.a and s.b, with a row each; nothing has run yet."""
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int primary key)"
    )
    db.execute("insert into s.a values (1); insert into s.b values (1)")
    return task(tmp_path, database)


def task(folder: Path, url: str, name: str = "shop") -> Task:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: ['s.*']}}\n"
        "freshness: 50ms\ncapture: {idle_advance: 1s}\nbaseline: {workers: 1}\n"
    )
    return load(path)


def capture(task: Task) -> None:
    Capture(task, once=True).run()


def refused(task: Task) -> SourceError:
    with pytest.raises(SourceError) as caught:
        capture(task)
    return caught.value


def drop(db: psycopg.Connection) -> None:
    slot.drop(db, SLOT)  # a server needs a moment to see that its reader has gone


def resync(task: Task, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["resync", str(task.folder / f"{task.name}.yaml"), *words, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ids(task: Task, table: str) -> list[int]:
    return sorted(lake.read(task.target_path(table))["id"].to_pylist())


def waiting(task: Task) -> set[str]:
    baselines = read_baselines(task.control_path("baselines"))
    return {t for t, one in lifecycle.of_task(task.commands_path, baselines).items() if one.waits}


@pytest.mark.slow
def test_a_slot_that_is_dropped_ends_capture_and_an_order_brings_the_task_back(
    shop: Task, db: psycopg.Connection
) -> None:
    """After a change; before the first one it is below, with crashes."""
    capture(shop)
    db.execute("insert into s.a values (2)")
    capture(shop)
    drop(db)
    db.execute("insert into s.a values (3); delete from s.b")
    for _ in range(2):
        error = refused(shop)
        assert "the slot is gone" in error.what and ANEW in (error.hint or "")
    assert resync(shop, "--new-stream")["tables"] == ["s.a", "s.b"]
    capture(shop)
    taken = read_baselines(shop.control_path("baselines"))
    assert [taken[t].number for t in ("s.a", "s.b")] == [2, 2]
    assert (ids(shop, "s.a"), ids(shop, "s.b")) == ([1, 2, 3], [])
    assert waiting(shop) == set()
    capture(shop)  # the order holds once
    assert read_baselines(shop.control_path("baselines"))["s.a"].number == 2


class Crash(Exception):  # noqa: N818 - stands for a kill
    pass


@pytest.mark.slow
@pytest.mark.spark
def test_targets_are_right_after_a_new_stream(shop: Task, db: psycopg.Connection, spark: Any) -> None:
    """What LOG still had is applied or covered, also of a table that waited; no change is applied twice."""
    drain(shop, spark)
    commands.give(shop.commands_path, commands.PAUSE, ["s.b"], why="", who="me")
    db.execute("insert into s.a values (2); insert into s.b values (2)")
    capture(shop)  # in LOG, not applied
    drop(db)
    db.execute("delete from s.a where id = 1; delete from s.b where id = 1; insert into s.a values (3)")
    resync(shop, "--new-stream")
    db.execute("insert into s.a values (4)")
    drain(shop, spark)
    db.execute("insert into s.a values (5); insert into s.b values (5); delete from s.a where id = 2")
    drain(shop, spark)
    assert (ids(shop, "s.a"), ids(shop, "s.b")) == ([3, 4, 5], [2])
    commands.give(shop.commands_path, commands.RESUME, ["s.b"], why="", who="me")
    drain(shop, spark)
    assert ids(shop, "s.b") == [2, 5]


STEPS = [
    (commands, "give", False), (PostgresSource, "renew", False), (streams, "write", False),
    (PostgresSource, "prepare", True), (capture_baselines, "write_baseline", True),
]  # fmt: skip
"""In their order; after each of the first three is before the next."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "after"), STEPS, ids=[f"{'after' if after else 'before'} {n}" for _, n, after in STEPS]
)
def test_a_crash_on_the_way_back_costs_nothing(
    shop: Task, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, after: bool
) -> None:
    """What lies between the streams is in no target as long as its new baseline is not."""
    capture(shop)
    drop(db)
    db.execute("insert into s.a values (2)")
    resync(shop, "--new-stream")
    real = getattr(place, name)

    def crash(*args: Any, **more: Any) -> Any:
        if after:
            real(*args, **more)
        raise Crash

    with monkeypatch.context() as one, pytest.raises(Crash):
        one.setattr(place, name, crash)
        capture(shop)
    db.execute("insert into s.a values (3)")
    assert ids(shop, "s.a") in ([1], [1, 2])
    left = waiting(shop)
    if (name, after) == ("write_baseline", True):
        assert left in ({"s.b"}, set())  # what has landed by then is recorded at once
    else:
        assert left == set() if name == "give" else "s.b" in left
    capture(shop)
    assert ids(shop, "s.a") == [1, 2, 3] or (ids(shop, "s.a"), log_ids(shop)) == ([1, 2], [7, 1, 12])
    assert waiting(shop) == set()


def log_ids(task: Task) -> list[int]:
    found: list[int] = lake.read(task.log_path).sort_by("CHANGE_SEQ")["RECID"].to_pylist()
    return found


@pytest.mark.slow
def test_tables_that_were_held_or_removed_when_the_slot_was_lost(shop: Task, db: psycopg.Connection) -> None:
    """Held tables get their baseline, too, and only the pause goes on; a removed one has to be added."""
    db.execute("create table s.c (id int primary key); create table s.gone (id int primary key)")
    capture(shop)
    for action, table in ((commands.PAUSE, "s.a"), (commands.SUSPEND, "s.b"), (commands.REMOVE, "s.c")):
        commands.give(shop.commands_path, action, [table], why="so", who="me")
    capture(shop)
    drop(db)
    db.execute("insert into s.a values (2); insert into s.b values (2); insert into s.c values (2)")
    db.execute("drop table s.gone; create table s.gone (id int primary key, n int)")
    assert resync(shop, "--new-stream", "--dry-run")["tables"] == ["s.a", "s.b", "s.gone"]
    refused(shop)
    resync(shop, "--new-stream")
    capture(shop)
    baselines = read_baselines(shop.control_path("baselines"))
    states = lifecycle.of_task(shop.commands_path, baselines)
    assert [(t, one.held, one.gap) for t, one in sorted(states.items())] == [
        ("s.a", "paused", False), ("s.b", "", False), ("s.c", "", True), ("s.gone", "", False),
    ]  # fmt: skip
    assert (ids(shop, "s.a"), ids(shop, "s.b"), ids(shop, "s.c")) == ([1, 2], [1, 2], [])
    assert [c.name for c in baselines["s.gone"].relation.columns] == ["id", "n"]
    commands.give(shop.commands_path, commands.ADD, ["s.c"], why="", who="me")
    capture(shop)
    assert ids(shop, "s.c") == [2]


@pytest.mark.slow
def test_the_publication_is_gone_and_made_anew(shop: Task, db: psycopg.Connection) -> None:
    capture(shop)
    db.execute(f"drop publication {SLOT}")
    error = refused(shop)
    assert "the publication is gone" in error.what and ANEW in (error.hint or "")
    resync(shop, "--new-stream")
    capture(shop)
    assert published(db, SLOT) == {"s.a", "s.b"} and waiting(shop) == set()


@pytest.mark.slow
def test_a_slot_that_somebody_else_read_or_made_again(shop: Task, db: psycopg.Connection) -> None:
    capture(shop)
    db.execute("insert into s.a values (2)")
    db.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (SLOT,))
    error = refused(shop)
    assert "changes in between are lost" in error.what and ANEW in (error.hint or "")
    drop(db)
    db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    assert "changes in between are lost" in refused(shop).what
    resync(shop, "--new-stream")
    capture(shop)
    assert ids(shop, "s.a") == [1, 2]


@pytest.mark.slow
def test_a_reader_that_an_earlier_capture_has_left_behind_is_waited_for(
    shop: Task, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of the earlier one is gone, and the server does not know that yet."""
    monkeypatch.setattr(checks, "_GOING_S", 0.1)
    monkeypatch.setattr(capture_state, "RETRY_S", (0.1,))
    capture(shop)
    left, stop = PostgresSource(shop.source.url, "shop"), threading.Event()
    left.start(None, [])

    def told() -> dict[str, Any]:
        return json_files.read(shop.run_path, "capture") or {}

    with meanwhile(Capture(shop, stop=stop).run, stop=stop):
        wait_for(lambda: told().get("state") == "reconnecting" and told()["attempts"] >= 2, 20)
        assert "is already reading the slot" in told()["message"]
        left.close()
        wait_for(lambda: told()["state"] == "running", 20)
        db.execute("insert into s.a values (2)")
        wait_for(lambda: log_ids(shop) == [7, 1, 12], 20)


def test_a_server_that_was_set_back(
    shop: Task, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream would pass over all changes up to the position that the task has read."""
    capture(shop)
    source = PostgresSource(shop.source.url, "shop")
    end = int.from_bytes(source.end_position()[:8], "big")
    (finding,) = source.check(["s.a", "s.b"], (end + (1 << 20)).to_bytes(8, "big") + bytes(12))
    source.close()
    assert "the server was restored from a backup" in finding.what and "new task" in finding.cure


@pytest.mark.slow
def test_a_slot_that_another_task_has_made_is_left_alone(
    shop: Task, db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """Two homes with one name against one database; the way on is another name."""
    capture(shop)
    (tmp_path / "other").mkdir()
    other = task(tmp_path / "other", database)
    db.execute("create table s.c (id int primary key)")
    before = db.execute("select confirmed_flush_lsn from pg_replication_slots").fetchall()
    for _ in range(2):
        error = refused(other)
        assert "a slot with this name exists that this task did not create" in error.what
        hint = error.hint or ""
        assert "no process reads it; reading it" in error.what
        assert hint.index(f"`source: {{slot: {SLOT}_2}}`") < hint.index(f"pg_drop_replication_slot('{SLOT}')")
    assert db.execute("select confirmed_flush_lsn from pg_replication_slots").fetchall() == before
    assert published(db, SLOT) == {"s.a", "s.b"}
    done = CliRunner().invoke(app, ["resync", str(other.folder / "shop.yaml"), "--new-stream"])
    assert "has not read anything yet" in str(done.exception)
    file = other.folder / "shop.yaml"
    file.write_text(file.read_text().replace("source: {", f"source: {{slot: {SLOT}_2, "))
    capture(load(file))
    assert ids(other, "s.a") == [1]
    slots = db.execute("select slot_name from pg_replication_slots order by 1").fetchall()
    assert slots == [(SLOT,), (f"{SLOT}_2",)] and published(db, SLOT) == {"s.a", "s.b"}
    file.write_text(file.read_text().replace(f"{SLOT}_2", f"{SLOT}_3"))
    with pytest.raises(ConfigError, match="the task has the slot"):
        Capture(load(file), once=True).run()


def test_another_task_makes_the_slot_just_then(
    shop: Task, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was refused does not take the other's slot for its own at its next start."""
    real = PostgresSource.prepare

    def late(self: PostgresSource, *args: Any, **more: Any) -> bool:
        real(self, *args, **more)
        self._drop_fresh()
        from tailrace.sources.postgresql.snapshot import SlotSnapshot

        SlotSnapshot(self.url, self.slot, transaction_wait.Waits(self.url), where="here")
        raise AssertionError

    with monkeypatch.context() as one:
        one.setattr(PostgresSource, "prepare", late)
        assert "already exists" in refused(shop).what
    assert "that this task did not create" in refused(shop).what


def test_a_new_slot_says_which_transactions_it_waits_for(
    shop: Task,
    database: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_wait, "AFTER_S", 0.1)
    with psycopg.connect(database, application_name="a report") as other:
        other.execute("insert into s.a values (2)")
        with meanwhile(partial(capture, shop), stop=threading.Event()):
            mine = f"process {other.info.backend_pid} ({other.info.user}, a report), since "
            wait_for(lambda: f"transactions that are open have ended: {mine}" in caplog.text, 20)
            other.commit()
    assert ids(shop, "s.a") == [1, 2]
