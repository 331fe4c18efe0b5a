"""A baseline in an open window, into a target with a constraint that the source has too: a change that is older
than the rows it meets may break it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture import baselines as taking
from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.keylog.control_tables import EXCEPTIONS
from tailrace.lake import delta as lake
from tailrace.operate.status import status
from tailrace.runtime.pipeline import Pipeline
from tailrace.state import commands

pytestmark = [pytest.mark.db, pytest.mark.spark, pytest.mark.slow]
CREATE = """
create schema s; create schema copies;
create table s.u (id int primary key, email text unique, v int);
create table copies.u (id int primary key, email text unique, v int);
insert into s.u values (1, 'X', 0), (2, null, 0), (3, null, 0);
"""
PASSED_ON = [  # the source never has 'X' twice; the rows are read when it is with the last one
    "update s.u set email = null where id = 1",
    "update s.u set email = 'X' where id = 2",
    "update s.u set email = null, v = 1 where id = 2",
    "update s.u set email = 'X' where id = 3",
]


@pytest.fixture
def taken(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Task]:
    """Gives a task with its baseline: its rows were read after the changes, which are in its window."""
    db.execute(CREATE)
    take = taking.baseline_reader.take_baselines
    waiting = list(PASSED_ON)

    def later(*given: Any) -> Any:
        while waiting:
            db.execute(waiting.pop(0))  # type: ignore[arg-type]
        return take(*given)

    monkeypatch.setattr(taking.baseline_reader, "take_baselines", later)

    def made(more: str) -> Task:
        task = again(tmp_path, database, "baseline: {workers: 1, window: open}\n" + more)
        Capture(task, once=True).run()
        return task

    return made


def again(folder: Path, url: str, more: str) -> Task:
    """The task with other settings."""
    file = folder / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{url}', tables: [s.u]}}\ntarget: '{url}&schema=copies'\n{more}"
    )
    return load(file)


def same(db: psycopg.Connection) -> bool:
    rows = [
        db.execute(f"select id, email, v from {name} order by id").fetchall() for name in ("s.u", "copies.u")
    ]  # type: ignore[arg-type]
    return rows[0] == rows[1]


def aside(task: Task) -> list[str]:
    path = f"{task.home}/control/{EXCEPTIONS}"
    return [row["ERROR"] for row in lake.read(path).to_pylist()] if lake.exists(path) else []


@pytest.mark.parametrize(
    "more", ["keylog: {mode: all}\n", "apply: {mode: soft_delete}\nkeylog: {mode: all}\n"]
)
def test_changes_that_fit_together_are_applied(
    taken: Callable[[str], Task], db: psycopg.Connection, spark: Any, more: str
) -> None:
    task = taken(more)
    Pipeline(task, spark).drain()
    assert same(db)
    assert aside(task) == []


@pytest.mark.parametrize(
    "more", ["apply: {transactional: true}\n", "apply: {mode: strict, transactional: true}\n"]
)
def test_a_stop_names_the_ways_out_and_one_of_them_ends_right(
    taken: Callable[[str], Task], tmp_path: Path, database: str, db: psycopg.Connection, spark: Any, more: str
) -> None:
    """Set aside, the run goes on, also after it has stopped there: the policy is what the window lacked."""
    task = taken(more)
    Pipeline(task, spark).drain()
    (one,) = status(task).tables
    assert one.state == "suspended" and one.why is not None
    for said in ("duplicate key", "in the open window of the baseline of s.u", "on: {data_error: log}",
                 "baseline: {window: exact}", "tailrace resync"):  # fmt: skip
        assert said in one.why
    logs = more.replace("apply: {", "apply: {on: {data_error: log}, ")
    logs = logs if "apply" in more else f"{more}apply: {{on: {{data_error: log}}}}\n"
    task = again(tmp_path, database, logs)
    commands.give(task.commands_path, commands.RESUME, ["s.u"], why="", who="test")
    Pipeline(task, spark).drain()
    (one,) = aside(task)
    assert one.startswith("data_error: duplicate key value violates unique constraint")
    db.execute("update s.u set v = 7 where id = 2; insert into s.u values (4, 'Y', 4)")
    Capture(task, once=True).run()
    Pipeline(task, spark).drain()
    assert same(db)
    assert len(aside(task)) == 1


def test_a_suspension_names_the_window_too(taken: Callable[[str], Task], spark: Any) -> None:
    task = taken("keylog: {mode: all}\napply: {transactional: true, on: {data_error: suspend}}\n")
    Pipeline(task, spark).drain()
    (one,) = status(task).tables
    assert one.state == "suspended" and one.why is not None
    assert "in the open window of the baseline of s.u" in one.why


def test_an_exact_window_is_a_way_out(
    taken: Callable[[str], Task], tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    more = "keylog: {mode: all}\napply: {transactional: true}\n"
    task = taken(more)
    Pipeline(task, spark).drain()
    task = again(tmp_path, database, f"baseline: {{workers: 1, window: exact}}\n{more}")
    commands.give(task.commands_path, commands.RESYNC, ["s.u"], why="exact", who="test")
    Capture(task, once=True).run()
    Pipeline(task, spark).drain()
    assert same(db)
