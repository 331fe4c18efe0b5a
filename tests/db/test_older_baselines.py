"""A table that was read again: questions about all tables, and about the time before, still have answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import tailrace as library
from tailrace.config.task import load

from .test_control import tailrace, task_file
from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]


@pytest.mark.slow
def test_after_a_resync_of_one_table_all_tables_are_cut_and_older_places_answered(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute(
        "create schema s; create table s.a (id int primary key, v text); create table s.b (id int primary key, v text);"
        "insert into s.a values (1, 'a'), (2, 'a'); insert into s.b values (1, 'b')"
    )
    path = task_file(tmp_path, database)
    path.write_text(path.read_text().replace("retention: {keep: 0s}\n", ""))
    drain(load(path), spark)
    db.execute("update s.a set v = 'x' where id = 1; update s.b set v = 'x' where id = 1")
    drain(load(path), spark)

    def cut(place: int | None) -> dict[str, list[tuple[int, str]]]:
        found = library.open(path).cut(place)
        return {t: sorted((r["id"], r["v"]) for r in rows.rows()) for t, rows in found.items()}

    before = library.open(path).finalized_until
    assert before is not None
    wanted = {"s.a": [(1, "x"), (2, "a")], "s.b": [(1, "x")]}
    assert cut(None) == wanted
    tailrace("resync", str(path), "s.a")
    drain(load(path), spark)
    assert cut(None) == wanted  # nothing has changed since
    db.execute("delete from s.a where id = 2")
    drain(load(path), spark)
    assert cut(None) == wanted | {"s.a": [(1, "x")]}
    assert cut(before.upto) == wanted
