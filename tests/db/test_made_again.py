"""Tables that are dropped and created again while capture is busy with them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.baselines import Baselines
from tailrace.capture.process import Capture
from tailrace.sources.postgresql import slot
from tailrace.sources.postgresql.slot import published
from tailrace.state import commands, lifecycle
from tailrace.state.baselines import baseline_numbers

from .test_control import Shop, task_file
from .test_model import drain, target_rows
from .test_running import meanwhile, wait_for

pytestmark = [pytest.mark.db, pytest.mark.slow]


@pytest.mark.parametrize("ordered", [False, True], ids=["its first baseline", "another baseline"])
def test_a_table_that_is_made_again_while_it_is_read_is_read_again(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """The rows that were read are of the old table, and nobody publishes those that the new one begins with."""
    db.execute("create schema s; create table s.a (id int primary key, v int); insert into s.a values (1, 1)")
    shop = Shop(task_file(tmp_path, database, tables="s.a"), db)
    if ordered:
        drain(shop.task, None)
        commands.give(shop.task.commands_path, commands.RESYNC, ["s.a"], why="to be sure", who="me")
    read, goes_on, land = threading.Event(), threading.Event(), Baselines._land

    def late(*given: Any) -> bool:
        read.set()
        assert goes_on.wait(60)
        return land(*given)

    monkeypatch.setattr(Baselines, "_land", late)
    stop = threading.Event()
    with meanwhile(Capture(shop.task, stop=stop).run, stop=stop):
        wait_for(read.is_set, 20)
        db.execute("drop table s.a")
        db.execute("create table s.a (id int primary key, v int); insert into s.a values (2, 2)")
        wait_for(lambda: "s.a" in (published(db, "tailrace_shop") or ()), 20)
        db.execute("insert into s.a values (3, 3)")
        goes_on.set()
        taken = shop.task.control_path("baselines")
        wait_for(lambda: baseline_numbers(taken).get("s.a") == 2 + ordered, 20)
    drain(shop.task, None)
    assert shop.equal("s.a")
    assert shop.state("s.a")[0] == "stopped"


def test_a_table_that_is_made_again_just_before_it_is_published_gets_a_new_baseline(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the publication and its change."""
    db.execute("create schema s; create table s.a (id int primary key, v int); insert into s.a values (1, 1)")
    db.execute("create table s.b (id int primary key)")
    more = "groups: {all: {tables: [s.*], automatic_baseline: true}}\n"
    shop = Shop(task_file(tmp_path, database, more=more), db)
    drain(shop.task, None)
    publish, asked, stop = slot.publish, threading.Event(), threading.Event()

    def late(*words: Any) -> dict[str, str]:
        if asked.is_set():
            asked.clear()
            shop.do("drop table s.a")
            shop.do("create table s.a (id int primary key, v int); insert into s.a values (2, 2)")
        return publish(*words)

    monkeypatch.setattr(slot, "publish", late)
    with meanwhile(Capture(shop.task, stop=stop).run, stop=stop):
        time.sleep(1)
        asked.set()
        commands.give(shop.task.commands_path, commands.PAUSE, ["s.b"], why="night load", who="me")
        taken = shop.task.control_path("baselines")
        wait_for(lambda: baseline_numbers(taken).get("s.a") == 2, 20)
    drain(shop.task, None)
    assert shop.equal("s.a")


@pytest.mark.parametrize(
    "renamed",
    [
        "alter table s.a rename to b; insert into s.b values (2, 2)",
        "alter table s.a rename to t; alter table s.c rename to a; alter table s.t rename to c; "
        "insert into s.c values (2, 2)",
    ],
    ids=["gone", "swapped"],
)
def test_a_table_that_is_renamed_just_before_the_publication_is_looked_at_is_not_lost(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, renamed: str
) -> None:
    """Between the look at its name and that at the publication, which has it under the new one."""
    for name in "ac":
        db.execute(
            f"create schema if not exists s; create table s.{name} (id int primary key, v int); "
            f"insert into s.{name} values (1, 1)"
        )  # type: ignore[arg-type]
    shop = Shop(task_file(tmp_path, database, tables="s.a, s.c"), db)
    drain(shop.task, None)
    entries, asked = slot.entries, list[str]()

    def late(*words: Any) -> dict[str, str] | None:
        if not asked:
            asked.append(renamed)
            db.execute(renamed)  # type: ignore[arg-type]
        return entries(*words)

    monkeypatch.setattr(slot, "entries", late)
    drain(shop.task, None)
    assert asked and not lifecycle.of_task(shop.task.commands_path, {})
    assert {t: sorted(r["id"] for r in target_rows(shop.task, t)) for t in ("s.a", "s.c")} == {
        "s.a": [1, 2], "s.c": [1],
    }  # fmt: skip
