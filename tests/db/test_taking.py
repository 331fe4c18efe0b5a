"""A table that cannot finish its baseline holds up no other; a connection lost on the way costs a try."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture import baseline_reader
from tailrace.capture import baselines as taking
from tailrace.capture.baseline_reader import BaselineAttempt
from tailrace.capture.baselines import Baselines
from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import ConnectionLostError
from tailrace.lake import log
from tailrace.state import capture_state, commands, lifecycle
from tailrace.state.baselines import read_baselines

from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db


@pytest.fixture
def shop(tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    db.execute("create schema s")
    for name in "abc":
        db.execute(f"create table s.{name} (id int primary key); insert into s.{name} values (1)")
    path = tmp_path / "shop.yaml"
    path.write_text(
        f"name: shop\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{database}', tables: ['s.*']}}\n"
        "freshness: 50ms\nbaseline: {workers: 1}\n"
    )
    return load(path)


@contextmanager
def always(url: str, statement: str) -> Iterator[None]:
    """A statement again and again, with a number where it has braces, until the block ends."""
    over = threading.Event()

    def work() -> None:
        with psycopg.connect(url, autocommit=True) as session:
            for number in range(1500):  # no table has more columns
                session.execute(statement.format(number))
                if over.wait(0.02):
                    break

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def taken(task: Task) -> list[str]:
    return sorted(read_baselines(task.control_path("baselines")))


def states(task: Task) -> dict[str, lifecycle.TableLifecycle]:
    return lifecycle.of_task(task.commands_path, read_baselines(task.control_path("baselines")))


@pytest.mark.slow
@pytest.mark.parametrize("window", ["exact", "open"])
def test_a_table_that_is_truncated_again_and_again(
    shop: Task, database: str, monkeypatch: pytest.MonkeyPatch, window: str
) -> None:
    """The others have their baselines after the first snapshot; it is suspended, and a later order serves it."""
    monkeypatch.setattr(taking, "PAUSES_S", (0.05,))
    text = Path(shop.folder / "shop.yaml").read_text()
    (shop.folder / "shop.yaml").write_text(text.replace("workers: 1", f"workers: 1, window: {window}"))
    task, stop = load(shop.folder / "shop.yaml"), threading.Event()
    change = "truncate s.b" if window == "exact" else "alter table s.b add x{} int"
    with meanwhile(Capture(task, stop=stop).run, stop=stop):
        with always(database, change):
            wait_for(lambda: taken(task) == ["s.a", "s.c"], 30)
            wait_for(lambda: states(task).get("s.b", lifecycle.TableLifecycle("s.b")).held == "suspended", 30)
            assert "2 times in a row" in states(task)["s.b"].why
        assert taken(task) == ["s.a", "s.c"]
        commands.resync(task.commands_path, "s.b", "it is quiet now", who="me")
        wait_for(lambda: taken(task) == ["s.a", "s.b", "s.c"], 30)
    assert states(task)["s.b"].held == ""


@pytest.mark.slow
def test_a_connection_lost_while_a_baseline_is_read(
    shop: Task, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever notices first: capture tries again, as it does when its own connection is lost."""
    monkeypatch.setattr(capture_state, "RETRY_S", (0.05,))
    real, calls = baseline_reader.take_baselines, []

    def lost(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionLostError("the server closed the connection", where="here")
        return real(*args)

    monkeypatch.setattr(baseline_reader, "take_baselines", lost)
    Capture(shop, once=True).run()
    assert taken(shop) == ["s.a", "s.b", "s.c"] and len(calls) == 2


@pytest.mark.slow
def test_a_table_altered_loaded_and_altered_back_before_its_next_change(
    shop: Task, db: psycopg.Connection
) -> None:
    """The history says again what it said first: from the baseline on, readers go by the baseline's layout."""
    Capture(shop, once=True).run()
    db.execute("alter table s.b rename id to number")
    commands.resync(shop.commands_path, "s.b", "it was altered", who="me")
    Capture(shop, once=True).run()
    db.execute("alter table s.b rename number to id; insert into s.b values (2)")
    Capture(shop, once=True).run()
    one, other = log.history(shop.relations_path)["s.b"]
    assert one.relation == other.relation and one.relation.key == ["id"]
    baseline = read_baselines(shop.control_path("baselines"))["s.b"]
    assert baseline.relation.key == ["number"]
    assert one.from_position < bytes.fromhex(baseline.position) <= other.from_position


@pytest.mark.slow
def test_a_table_made_again_that_has_another_name_when_its_first_change_is_read(
    shop: Task, db: psycopg.Connection
) -> None:
    """It is known by the name that its baseline has: its changes are nobody else's."""
    Capture(shop, once=True).run()
    db.execute("drop table s.b; create table s.b (id int primary key, n int)")
    commands.resync(shop.commands_path, "s.b", "it was made again", who="me")
    Capture(shop, once=True).run()
    db.execute("alter table s.b rename to moved; insert into s.moved values (2, 2)")
    db.execute("alter table s.moved rename to b; insert into s.b values (3, 3)")
    Capture(shop, once=True).run()
    relid = read_baselines(shop.control_path("baselines"))["s.b"].relation.relid
    found = log.history(shop.relations_path)
    assert sorted(found) == ["s.a", "s.b", "s.c"]
    assert next(one.relation.table for one in found["s.b"] if one.relation.relid == relid) == "s.b"


@pytest.mark.parametrize("window", ["exact", pytest.param("open", marks=pytest.mark.slow)])
def test_a_table_that_goes_before_its_turn_leaves_the_others_their_baselines(
    tmp_path: Path,
    shop: Task,
    db: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    window: str,
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(file.read_text().replace("workers: 1", f"workers: 1, window: {window}"))
    attempts = Baselines._attempts

    def late(self: Baselines, due: Sequence[str]) -> Mapping[str, BaselineAttempt]:
        db.execute("drop table if exists s.b; alter table if exists s.c rename to d")
        return attempts(self, due)

    monkeypatch.setattr(Baselines, "_attempts", late)
    Capture(load(file), once=True).run()
    assert "s.a" in taken(shop) and not {"s.b", "s.c"}.intersection(taken(shop))
    monkeypatch.undo()
    Capture(load(file), once=True).run()
    assert (taken(shop), states(shop)) == (["s.a", "s.d"], {})
    assert caplog.messages.count("s.b: no baseline is read: there is no table s.b") == 1
