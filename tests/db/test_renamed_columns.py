"""Questions over a rename that a real server reported, under the default replica identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import tailrace
from tailrace.config.task import load

from .test_control import task_file
from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]


@pytest.mark.slow
def test_questions_over_a_rename_have_the_values_of_before(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute(
        "create schema s; create table s.a (id int primary key, name text, place text);"
        "insert into s.a values (1, 'one', 'here'), (2, 'two', 'here')"
    )
    path = task_file(tmp_path, database, tables="s.a")
    path.write_text(path.read_text().replace("retention: {keep: 0s}\n", ""))
    drain(load(path), spark)
    db.execute("update s.a set name = 'uno' where id = 1")
    drain(load(path), spark)
    before = tailrace.open(path).finalized_until
    assert before is not None
    db.execute("alter table s.a rename name to title; alter table s.a rename place to name")
    db.execute("update s.a set title = 'eins' where id = 1; delete from s.a where id = 2")
    drain(load(path), spark)
    table = tailrace.open(path).table("s.a")

    def one(id: int, title: str) -> dict[str, Any]:
        return {"id": id, "title": title, "name": "here"}

    assert [(r["before"], r["after"], r["changed"]) for r in table.pairs().rows()] == [
        (one(1, "one"), one(1, "uno"), ["title"]),
        (one(1, "uno"), one(1, "eins"), ["title"]),
        (one(2, "two"), None, None),
    ]
    assert [(r["title"], r["name"], r["_absent"]) for r in table.net().rows()] == [
        ("one", "here", None), ("eins", "here", None), ("two", "here", None),
    ]  # fmt: skip
    assert [r["title"] for r in table.history().rows() if r["id"] == 1] == ["one", "uno", "eins"]
    assert len(table.chain({"id": 1}).rows()) == 2
    (then,) = table.pairs(end=before.upto, names="then").rows()
    assert (then["after"], then["changed"]) == ({"id": 1, "name": "uno", "place": "here"}, ["name"])
