"""Changes that nobody captured, on a real server: questions across them are refused, those beside them answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import tailrace
from tailrace.config.task import Task
from tailrace.errors import GapError
from tailrace.library.task_table import TaskTable
from tailrace.state import commands
from tailrace.state.baselines import read_baselines

from .test_model import drain
from .test_slot import drop, resync, task

pytestmark = [pytest.mark.db, pytest.mark.spark, pytest.mark.slow]
LOST = "update s.{0} set v = 'LOST' where id = 1; delete from s.{0} where id = 2; insert into s.{0} values (9, 'LOST')"
CURRENT = [(1, "LOST"), (3, "after"), (9, "LOST")]


@pytest.fixture
def shop(tmp_path: Path, database: str, db: psycopg.Connection, spark: Any) -> Task:
    """Tables s.a and s.b, three rows in each baseline, and one update since."""
    db.execute("create schema s")
    for name in "ab":
        db.execute(f"create table s.{name} (id int primary key, v text)")  # type: ignore[arg-type]
        db.execute(f"alter table s.{name} replica identity full")  # type: ignore[arg-type]
        db.execute(f"insert into s.{name} values (1, 'base'), (2, 'base'), (3, 'base')")  # type: ignore[arg-type]
    made = task(tmp_path, database)
    drain(made, spark)
    db.execute("update s.a set v = 'one' where id = 1")
    db.execute("update s.b set v = 'one' where id = 1")
    drain(made, spark)
    return made


def lose(db: psycopg.Connection, name: str) -> None:
    db.execute(LOST.format(name))  # type: ignore[arg-type]


def table(task: Task, name: str) -> TaskTable:
    return tailrace.open(task.folder / "shop.yaml").table(name)


def numbers(task: Task, name: str) -> list[int]:
    rows = table(task, name).files.rows_where(None)
    return sorted({int(seq[16:]) for seq in rows["header__change_seq"].to_pylist()})


def told(rows: tailrace.Result) -> list[tuple[int, str]]:
    return sorted((r["id"], r["v"]) for r in rows.rows())


def refused(task: Task, name: str) -> None:
    """The changes are one before the gap and one behind it."""
    first, last = numbers(task, name)
    found = table(task, name)
    for ask in (found.net, found.history, found.changes, found.pairs, found.net_changes, found.rebuild):
        for ends in ((), (first,), (None, last), (first, last), (first + 1,)):
            with pytest.raises(GapError, match=f"between change number {first} and .* were never captured"):
                ask(*ends)
    with pytest.raises(GapError):
        found.chain({"id": 1})
    assert len(found.changes(None, first).rows()) == len(found.changes(last).rows()) == 2
    assert told(found.current()) == CURRENT
    taken = read_baselines(task.control_path("baselines"))[name]
    assert len(found.net(taken.after + 1).rows()) == len(found.net(taken.position).rows()) == 2
    base = found.as_of(taken.after).table()
    kept = found.keep_history(str(task.folder / f"later_{name}"), start=taken.after + 1, base=base)
    assert told(kept.current()) == CURRENT


def test_a_new_stream(shop: Task, db: psycopg.Connection, spark: Any) -> None:
    kept = table(shop, "s.a").keep_history(str(shop.folder / "kept"))
    before = kept.versions().rows()
    drop(db)
    lose(db, "a")
    resync(shop, "--new-stream")
    drain(shop, spark)
    with pytest.raises(GapError, match="--new-stream"):
        table(shop, "s.a").net()
    db.execute("update s.a set v = 'after' where id = 3")
    drain(shop, spark)
    refused(shop, "s.a")
    with pytest.raises(GapError, match="never captured"):
        table(shop, "s.a").keep_history(str(shop.folder / "kept"))
    assert kept.versions().rows() == before


def test_a_table_that_was_removed_and_added_again(shop: Task, db: psycopg.Connection, spark: Any) -> None:
    kept = table(shop, "s.b").keep_history(str(shop.folder / "kept"))
    commands.give(shop.commands_path, commands.REMOVE, ["s.b"], why="", who="me")
    drain(shop, spark)
    lose(db, "b")
    db.execute("update s.a set v = 'two' where id = 1")
    drain(shop, spark)
    assert len(table(shop, "s.b").net().rows()) == 2  # nothing was captured since
    commands.give(shop.commands_path, commands.ADD, ["s.b"], why="", who="me")
    drain(shop, spark)
    db.execute("update s.b set v = 'after' where id = 3")
    drain(shop, spark)
    refused(shop, "s.b")
    with pytest.raises(GapError, match="removed, and added again"):
        table(shop, "s.b").keep_history(str(shop.folder / "kept"))
    assert told(kept.current()) == [(1, "one")]
    assert len(table(shop, "s.a").net().rows()) == 2  # nothing is missing there


def test_a_table_that_was_taken_out_of_the_publication(
    shop: Task, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("alter publication tailrace_shop drop table s.b")
    lose(db, "b")
    drain(shop, spark)  # suspends it
    resync(shop, "s.b")
    drain(shop, spark)
    db.execute("update s.b set v = 'after' where id = 3")
    drain(shop, spark)
    refused(shop, "s.b")


def test_a_new_baseline_alone_loses_nothing(shop: Task, db: psycopg.Connection, spark: Any) -> None:
    """What is changed before, while and after it is read is in the change table."""
    kept = table(shop, "s.a").keep_history(str(shop.folder / "kept"))
    db.execute("update s.a set v = 'two' where id = 1")
    resync(shop, "s.a")
    lose(db, "a")
    drain(shop, spark)
    db.execute("update s.a set v = 'after' where id = 3")
    drain(shop, spark)
    assert read_baselines(shop.control_path("baselines"))["s.a"].number == 2
    found = table(shop, "s.a")
    assert sorted(r["_change_type"] for r in found.pairs().rows()) == ["delete", "insert", *["update"] * 4]
    again = found.keep_history(str(shop.folder / "kept"))
    assert told(found.current()) == told(again.current()) == CURRENT
    assert kept.path == again.path
