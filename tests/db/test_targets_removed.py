"""Targets that cannot be removed at once: capture goes on, and removes them later."""

from __future__ import annotations

import logging
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import load
from tailrace.errors import ApplyError
from tailrace.lake import log
from tailrace.operate import table_commands
from tailrace.state import commands

pytestmark = pytest.mark.db


@pytest.mark.slow
def test_a_target_that_others_use_is_removed_when_they_are_done(
    tmp_path: Path, database: str, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    db.execute("create schema s; create schema copies")
    db.execute("create table s.a (id int primary key); create table s.b (id int primary key)")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nhome: home\nsource: {{url: '{database}', tables: ['s.*']}}\ntarget: '{database}&schema=copies'\n"
    )
    task = load(file)
    Capture(task, once=True).run()
    db.execute("create view copies.v as select * from copies.a")
    with pytest.raises(ApplyError, match="other objects depend on it"):
        table_commands.give(task, commands.REMOVE, ["s.a"], drop_target=True)

    def captured() -> int:
        """The end of LOG, with one more transaction."""
        db.execute("insert into s.b select coalesce(max(id), 0) + 1 from s.b")
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            Capture(task, once=True).run()
        return log.state(task.log_path).number

    first = captured()
    (said,) = [r.getMessage() for r in caplog.records if "not removed yet" in r.getMessage()]
    assert "s.a" in said and "`tailrace add TASK s.a` cancels the removal" in said
    db.execute("drop view copies.v")
    with psycopg.connect(database) as reader:
        reader.execute("select * from copies.a")  # its transaction is open
        assert captured() > first
        assert "lock" in caplog.text
    assert captured() > first + 1
    assert "not removed yet" not in caplog.text
    assert db.execute("select to_regclass('copies.a'), to_regclass('copies.b') is null").fetchall() == [
        (None, False)
    ]
