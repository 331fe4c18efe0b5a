"""What concerns one table suspends that table, without a group; the task and the other tables go on."""

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

pytestmark = [pytest.mark.db, pytest.mark.slow]

TASK = "name: shop\nsource: {{url: '{url}', tables: [{tables}]}}\ntarget: {target}\nspark: {{start: when_needed}}\n"


def tailrace(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, (words, done.output, done.exception)
    return json.loads(done.stdout)


class Shop:
    """A task with the tables s.a and s.b, both with one row."""

    def __init__(self, folder: Path, url: str, db: psycopg.Connection, target: str, tables: str) -> None:
        self.file, self.path = str(folder / "shop.yaml"), folder / "lake"
        Path(self.file).write_text(TASK.format(url=url, tables=tables, target=target))
        db.execute("create schema s")
        for table in ("s.a", "s.b"):
            db.execute(
                f"create table {table} (id int primary key, v text); insert into {table} values (1, 'x')"
            )

    def bring(self) -> dict[str, tuple[str, str]]:
        """Brings the targets up; the suspended tables, with their reasons."""
        for half in ("capture", "pipeline"):
            tailrace(half, self.file, "--once")
        found = tailrace("status", self.file)["tables"]
        return {one["table"]: one["why"] for one in found if one["state"] == "suspended"}


@pytest.mark.parametrize("tables", ["s.*", "s.a, s.b"])
def test_table_that_is_dropped_at_the_source_leaves_the_others_to_validate(
    tmp_path: Path, database: str, db: psycopg.Connection, tables: str
) -> None:
    shop = Shop(tmp_path, database, db, "lake", tables)
    assert shop.bring() == {}
    db.execute("drop table s.b; update s.a set v = 'y'")
    found = {t["table"]: t for t in tailrace("validate", shop.file, code=3)["tables"]}
    assert (found["s.a"]["equal"], found["s.a"]["source_rows"]) == (True, 1)
    assert found["s.b"]["not_compared"] == "the source has no table s.b (`tailrace remove` ends its copy)"
    assert list(shop.bring()) == ["s.b"]
    assert lake.read(str(shop.path / "s.a")).to_pylist() == [{"id": 1, "v": "y"}]


def test_view_on_a_postgresql_target_suspends_its_table_at_a_change_of_type(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = Shop(tmp_path, database, db, f"'{database}&schema=lake'", "s.*")
    assert shop.bring() == {}
    db.execute("create view seen as select v from lake.a")
    db.execute("alter table s.a alter v type varchar(9); update s.a set v = 'y'; update s.b set v = 'y'")
    (why,) = shop.bring().values()
    assert "cannot alter type of a column used by a view" in why
    assert db.execute("select v from lake.a union all select v from lake.b").fetchall() == [("x",), ("y",)]
    db.execute("drop view seen")
    tailrace("resume", shop.file, "s.a")
    assert shop.bring() == {} and tailrace("validate", shop.file)["equal"]


def test_column_of_others_that_is_in_the_way_suspends_its_table(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = Shop(tmp_path, database, db, "lake", "s.*")
    shop.bring()
    DeltaTable(str(shop.path / "s.a")).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(str(shop.path / "s.a")).update(new_values={"note": "mine"})
    db.execute("alter table s.a add note text; update s.a set note = 'z'; update s.b set v = 'y'")
    (why,) = shop.bring().values()
    assert "has a column 'note' already, with values that somebody wrote" in why
    assert lake.read(str(shop.path / "s.a")).to_pylist() == [{"id": 1, "v": "x", "note": "mine"}]
    assert lake.read(str(shop.path / "s.b")).to_pylist() == [{"id": 1, "v": "y"}]


def test_baseline_that_cannot_land_suspends_its_table(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = Shop(tmp_path, database, db, "lake", "s.*")
    db.execute("create table s.c (id int primary key, n numeric(5,2)); insert into s.c values (1, 'NaN')")
    (table, why), *rest = shop.bring().items()
    assert (table, rest) == ("s.c", []) and "NaN" in why
    assert lake.read(str(shop.path / "s.b")).to_pylist() == [{"id": 1, "v": "x"}]
    db.execute("update s.c set n = 7")
    tailrace("resume", shop.file, "s.c")
    assert shop.bring() == {}
    assert [str(row["n"]) for row in lake.read(str(shop.path / "s.c")).to_pylist()] == ["7.00"]
