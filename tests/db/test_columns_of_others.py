"""Columns that somebody added to a Delta target stay with their values, whatever the source's DDL is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.lake import delta as lake

pytestmark = [pytest.mark.db, pytest.mark.spark]

TASK = "name: shop\nsource: {{url: '{url}', tables: [s.t]}}\ntarget: lake\nspark: {{start: when_needed}}\n"


def tailrace(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, (words, done.output, done.exception)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_column_that_somebody_added_outlives_every_ddl_of_the_source(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    file, path = tmp_path / "shop.yaml", str(tmp_path / "lake/s.t")
    file.write_text(TASK.format(url=database))

    def bring() -> list[dict[str, Any]]:
        for half in ("capture", "pipeline"):
            tailrace(half, str(file), "--once")
        return sorted(lake.read(path).to_pylist(), key=lambda row: int(row["id"]))

    db.execute("create schema s; create table s.t (id int primary key, a int, b text)")
    db.execute("insert into s.t values (1, 10, 'x'), (2, 20, 'y')")
    bring()
    DeltaTable(path).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(path).update(new_values={"note": "mine"}, predicate="id = 1")
    db.execute("alter table s.t add column c int; update s.t set c = 1 where id = 2")
    bring()
    db.execute("alter table s.t rename column a to n; alter table s.t alter n type bigint")
    db.execute("insert into s.t values (3, 30, 'z', 3)")
    bring()
    db.execute(
        "alter table s.t drop column b, add column d int default 7; update s.t set n = 11 where id = 1"
    )
    assert bring() == [
        {"id": 1, "n": 11, "c": None, "d": 7, "note": "mine"},
        {"id": 2, "n": 20, "c": 1, "d": 7, "note": None},
        {"id": 3, "n": 30, "c": 3, "d": 7, "note": None},
    ]
    assert tailrace("validate", str(file))["equal"] is True
