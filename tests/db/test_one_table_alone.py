"""What concerns one table suspends that table, without a group; the task and the other tables go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
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

ODD = "the columns v and V differ in letter case only: a change table cannot have both"
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

    def bring(self, halves: Sequence[str] = ("capture", "pipeline")) -> dict[str, tuple[str, str]]:
        """Brings the targets up; the suspended tables, with their reasons."""
        for half in halves:
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
    assert "already has a column 'note' with values that another process wrote" in why
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


def rows(shop: Shop, table: str) -> list[tuple[str, ...]]:
    """A target's rows as texts, in order of their keys."""
    found = lake.read(str(shop.path / table)).sort_by("id").to_pylist()
    return [tuple(str(v) for v in row.values()) for row in found]


def test_value_that_its_type_cannot_hold_suspends_its_table_in_front_of_it(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = Shop(tmp_path, database, db, "lake", "s.*")
    db.execute(
        "create table s.c (id int primary key, n numeric(5,2)); alter table s.c replica identity full;"
        "insert into s.c values (1, 1.5)"
    )
    assert shop.bring() == {}
    db.execute("insert into s.c values (2, 2.5)")
    assert shop.bring() == {}
    db.execute(
        "update s.c set n = 'NaN' where id = 1; insert into s.c values (3, 3.5); update s.a set v = 'y'"
    )
    ((table, why),) = shop.bring().items()
    aside = lake.read(str(tmp_path / "shop/control/quarantine")).to_pylist()
    assert [(one["table"], one["column"], one["value"]) for one in aside] == [("s.c", "n", "NaN")]
    assert table == "s.c" and why.startswith(
        "'NaN' does not fit s.c.n (lake type decimal(5,2)), in change number"
    )
    assert (
        f"(change_seq {aside[0]['change_seq']})" in why
        and "`tailrace resume TASK s.c` continues with NULL" in why
    )
    assert rows(shop, "s.c") == [("1", "1.50"), ("2", "2.50")]
    assert rows(shop, "s.a") == [("1", "y")]

    tailrace("resume", shop.file, "s.c")
    assert shop.bring() == {}
    assert rows(shop, "s.c") == [("1", "None"), ("2", "2.50"), ("3", "3.50")]
    db.execute("update s.c set n = 7 where id = 1")  # its old image has the value once more
    assert shop.bring() == {} and rows(shop, "s.c")[0] == ("1", "7.00")

    db.execute("update s.c set n = 'NaN' where id = 2; update s.a set v = 'z'")
    assert list(shop.bring()) == ["s.c"] and rows(shop, "s.c")[1] == ("2", "2.50")
    db.execute("update s.c set n = 8 where id = 2")
    assert list(shop.bring()) == ["s.c"]
    tailrace("resync", shop.file, "s.c")
    assert shop.bring() == {} and tailrace("validate", shop.file)["equal"]
    assert rows(shop, "s.c") == [("1", "7.00"), ("2", "8.00"), ("3", "3.50")]


@pytest.mark.parametrize("halves", [("capture", "pipeline"), ("run",)], ids=" ".join)
def test_error_of_check_about_one_table_suspends_it_at_the_first_start(
    tmp_path: Path, database: str, db: psycopg.Connection, halves: Sequence[str]
) -> None:
    shop = Shop(tmp_path, database, db, "lake", "s.*")
    db.execute(
        "create table s.c (id int primary key, v text, \"V\" text); insert into s.c values (1, 'x', 'y')"
    )
    assert [(f["table"], f["level"]) for f in tailrace("check", shop.file, code=3)["findings"]] == [
        ("s.c", "error")
    ]
    ((table, why),) = shop.bring(halves).items()
    assert table == "s.c" and why.startswith(f"{ODD}: rename one at the source")
    assert why.endswith("then `tailrace resume TASK s.c`, or `tailrace resync TASK s.c` for a new baseline")
    assert [(f["table"], f["level"]) for f in tailrace("check", shop.file)["findings"]] == [
        ("s.c", "warning")
    ]
    assert (rows(shop, "s.a"), lake.exists(str(shop.path / "s.c"))) == ([("1", "x")], False)
    assert shop.bring(halves) == {"s.c": why}
    db.execute('alter table s.c rename "V" to w')
    tailrace("resume", shop.file, "s.c")
    assert shop.bring(halves) == {} and rows(shop, "s.c") == [("1", "x", "y")]


def test_error_of_check_about_one_table_suspends_it_when_the_task_has_run(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Its changes come all the same, and cannot be stored: it gets a new baseline once it can."""
    shop = Shop(tmp_path, database, db, "lake", "s.*")
    assert shop.bring() == {}
    db.execute("alter table s.b add \"V\" text; insert into s.b values (2, 'y', 'z'); update s.a set v = 'y'")
    ((table, why),) = shop.bring().items()
    assert table == "s.b" and why.startswith("changes were not stored: its change table cannot have both")
    assert (rows(shop, "s.a"), rows(shop, "s.b")) == ([("1", "y")], [("1", "x")])
    tailrace("resume", shop.file, "s.b")  # not before it has what was not stored
    assert list(shop.bring()) == ["s.b"] and rows(shop, "s.b") == [("1", "x")]
    db.execute('alter table s.b rename "V" to w; insert into s.b values (3, null, null)')
    tailrace("resume", shop.file, "s.b")
    assert shop.bring() == {} and tailrace("validate", shop.file)["equal"]
    assert rows(shop, "s.b") == [("1", "x", "None"), ("2", "y", "z"), ("3", "None", "None")]


def test_mistake_in_a_mapping_suspends_its_table(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = Shop(tmp_path, database, db, "lake", "s.*")
    right = Path(shop.file).read_text()
    Path(shop.file).write_text(f"{right}tables: {{s.b: {{key: [nope]}}}}\n")
    ((table, why),) = shop.bring().items()
    assert table == "s.b" and "nope" in why and "correct `tables` in the task file" in why
    assert (rows(shop, "s.a"), lake.exists(str(shop.path / "s.b"))) == ([("1", "x")], False)
    Path(shop.file).write_text(right)
    tailrace("resume", shop.file, "s.b")
    assert shop.bring() == {} and rows(shop, "s.b") == [("1", "x")]
