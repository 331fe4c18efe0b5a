"""Questions about changes that came without before images: what they show is what the source had."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

import tailrace
from tailrace.cli.main import app
from tailrace.config.task import load

from .reading import Make
from .test_control import task_file
from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]


def shown(found: tailrace.Result, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[n] for n in names) for row in found.rows()]


@pytest.mark.slow
def test_questions_fill_in_rows_of_before_under_the_default_replica_identity(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute(
        "create schema s; create table s.a (id int primary key, name text, price numeric(8,2), big text);"
        "insert into s.a select n, 'item ' || n, n, repeat(md5(n::text), 300) from generate_series(1, 4) n;"
        "alter table s.a alter big set storage external"
    )
    path = task_file(tmp_path, database, tables="s.a")
    drain(load(path), spark)  # the baseline
    big = dict(db.execute("select id, big from s.a").fetchall())
    db.execute("update s.a set price = 9.5 where id = 1")  # TOAST is not sent
    db.execute("delete from s.a where id = 2")
    db.execute("update s.a set id = 30 where id = 3")
    drain(load(path), spark)
    db.execute("update s.a set name = 'last' where id = 1")
    drain(load(path), spark)
    table = tailrace.open(path).table("s.a")

    assert shown(table.pairs(), "before", "changed", "_absent") == [
        ({"id": 1, "name": "item 1", "price": Decimal("1.00"), "big": big[1]}, ["price"], None),
        ({"id": 2, "name": "item 2", "price": Decimal("2.00"), "big": big[2]}, None, None),
        ({"id": 3, "name": "item 3", "price": Decimal("3.00"), "big": big[3]}, ["id"], None),
        ({"id": 1, "name": "item 1", "price": Decimal("9.50"), "big": big[1]}, ["name"], None),
    ]
    net = [
        (r["id"], r["name"], r["big"] == big.get(r["id"], big[3]), r["_change_type"])
        for r in table.net().rows()
    ]
    assert net == [
        (2, "item 2", True, "delete"), (3, "item 3", True, "delete"), (30, "item 3", True, "insert"),
        (1, "item 1", True, "update_preimage"), (1, "last", True, "update_postimage"),
    ]  # fmt: skip
    last = table.pairs().rows()[-1]["change_seq"]
    assert shown(table.net(last), "name", "_absent") == [("item 1", None), ("last", None)]
    assert shown(table.chain({"id": 30}), "_change_type", "_absent") == [("update", None)]
    versions = table.history().rows()
    assert [r["name"] for r in versions if r["id"] == 1] == ["item 1", "item 1", "last"]
    assert all(r["_absent"] is None for r in versions)


def test_check_and_init_offer_whole_before_images_and_say_what_they_cost(
    tmp_path: Path, database: str, db: psycopg.Connection, make: Make
) -> None:
    db.execute(
        "create schema s; create table s.a (id int primary key); create table s.b (id int);"
        "alter table s.b replica identity full;"
        "create table s.p (id int primary key) partition by range (id);"
        "create table s.p1 partition of s.p for values from (0) to (9);"
        "alter table s.p replica identity full"
    )
    ran = CliRunner().invoke(app, ["check", str(task_file(tmp_path, database, tables="s.*"))])
    assert ran.exit_code == 0
    said = ran.stdout.replace("\n", " ")
    assert "error" not in said
    assert "updates and deletes of s.a, s.p are sent without the old row" in said
    assert (
        "offer: ALTER TABLE s.a REPLICA IDENTITY FULL; ALTER TABLE s.p1 REPLICA IDENTITY FULL (each" in said
    )
    assert "writes the whole old row to the server's log" in said
    file = str(tmp_path / "new.yaml")
    ran = CliRunner().invoke(app, ["init", database, "s.b", "--file", file, "--json"])
    assert json.loads(ran.stdout)["notes"] == []
    ran = CliRunner().invoke(app, ["init", database, "s.*", "--file", file, "--force"])
    assert "offer: ALTER TABLE s.a REPLICA IDENTITY FULL" in ran.stdout
    source = make()
    db.execute("alter table s.a replica identity full; alter table s.p1 replica identity full")
    assert source.offers(["s.a", "s.b", "s.p"]) == []
