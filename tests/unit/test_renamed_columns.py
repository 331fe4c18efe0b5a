"""Questions over a rename: a column is known by its identity, whatever it was called."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.errors import ConfigError
from tailrace.library.task_table import TaskTable
from tailrace.model import mask
from tailrace.model.change import Column, Relation
from tailrace.model.types import header_schema
from tailrace.store.tables import ensure

from .once import once
from .task_home import COLUMNS, ITEM, TaskHome, item, seq

pytestmark = pytest.mark.unit
KEY, NAME, PRICE = COLUMNS
TITLE = replace(NAME, name="title")
START = len(header_schema())


def altered(home: TaskHome, number: int, *columns: Column) -> None:
    home.layout(number, columns)
    ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", columns), number)


@once
def renamed(folder: Path) -> TaskHome:
    """Row 1 in the baseline; `name` becomes `title` at change 13."""
    home = TaskHome(folder)
    home.baseline([item(1)], after=10)
    home.store((11, "U", item(1, "b")), (12, "I", item(2)))
    home.applied([item(1, "b"), item(2)], 12)
    altered(home, 13, KEY, TITLE, PRICE)
    # The price is not sent.
    sent = {"header__column_mask": mask.encode([START, START + 3])}
    home.store(
        (13, "U", {"id": 1, "title": "c"} | sent),
        (14, "D", {"id": 2} | {"header__column_mask": mask.encode([START])}),
    )
    return home


@pytest.fixture
def table(tmp_path: Path) -> TaskTable:
    return tailrace.open(renamed(tmp_path).file).table(ITEM)


def row(number: int, title: str, name: str = "title") -> dict[str, Any]:
    return {"id": number, name: title, "price": Decimal("1.00")}


def test_pairs_over_a_rename_have_the_names_of_today(table: TaskTable) -> None:
    assert [(r["before"], r["after"], r["changed"]) for r in table.pairs().rows()] == [
        (row(1, "a"), row(1, "b"), ["title"]),
        (None, row(2, "a"), None),
        (row(1, "b"), row(1, "c"), ["title"]),
        (row(2, "a"), None, None),
    ]


def test_every_question_over_a_rename_is_answered(table: TaskTable) -> None:
    assert [(r["title"], r["price"], r["_absent"]) for r in table.net().rows()] == [
        ("a", Decimal("1.00"), None), ("c", Decimal("1.00"), None),
    ]  # fmt: skip
    assert [r["title"] for r in table.history().rows() if r["id"] == 1] == ["a", "b", "c"]
    assert [r["changed"] for r in table.chain({"id": 1}).rows()] == [["title"], ["title"]]
    assert [r["title"] for r in table.rebuild().rows()] == ["b", "a", "c", "a"]
    found = table.changes(columns_changed=True).rows()
    assert [(r["title"], r["columns_present"]) for r in found] == [
        ("b", None), ("a", None), ("c", ["id", "title"]), (None, ["id"]),
    ]  # fmt: skip


def test_the_names_of_then_are_those_at_the_end_of_the_range(table: TaskTable) -> None:
    assert [r["after"] for r in table.pairs(11, 11, names="then").rows()] == [row(1, "b", "name")]
    assert [r["after"] for r in table.pairs(11, 11).rows()] == [row(1, "b")]
    assert table.net(names="then").schema.names[:3] == ["id", "title", "price"]
    assert table.net(11, 12, columns=["name"], names="then").schema.names[:2] == ["id", "name"]
    with pytest.raises(ConfigError, match="no column name in this range"):
        table.net(11, 12, columns=["name"])


def test_two_columns_that_changed_names_keep_their_values(tmp_path: Path) -> None:
    p, q = (Column(n, k, "text", "text", "string") for n, k in (("p", 2), ("q", 3)))
    home = TaskHome(tmp_path, columns=(KEY, p, q))
    home.store((11, "I", {"id": 1, "p": "P", "q": "Q"}))
    altered(home, 12, KEY, replace(p, name="q"), replace(q, name="p"))
    home.store((12, "U", {"id": 1, "p": "Q", "q": "P2", "header__change_mask": mask.encode([START + 2])}))
    (_, update) = tailrace.open(home.file).table(ITEM).pairs().rows()
    assert update["before"] == {"id": 1, "q": "P", "p": "Q"}
    assert update["after"] == {"id": 1, "q": "P2", "p": "Q"}
    assert (update["changed"], update["change_seq"]) == (["q"], seq(12))


def test_a_renamed_key_is_still_the_key(tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    home.store((11, "I", item(1)))
    altered(home, 12, replace(KEY, name="number"), NAME, PRICE)
    home.store((12, "D", {"number": 1}))
    found = tailrace.open(home.file).table(ITEM).chain({"number": 1}).rows()
    assert [(r["life"], r["_change_type"]) for r in found] == [(1, "insert"), (1, "delete")]


def test_a_column_that_took_the_name_of_a_dropped_one_stands_beside_it(tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    home.store((11, "I", item(1)))
    altered(home, 12, KEY, replace(PRICE, name="cost"), replace(NAME, attnum=5))
    home.store((12, "U", {"id": 1, "name": "new", "cost": Decimal(2)}))
    table = tailrace.open(home.file).table(ITEM)
    assert [r["after"] for r in table.pairs().rows()] == [
        {"id": 1, "cost": Decimal(1), "name": None}, {"id": 1, "cost": Decimal(2), "name": "new"},
    ]  # fmt: skip
    assert [r["after"] for r in table.pairs(11, 11).rows()] == [
        {"id": 1, "name__until_12": "a", "cost": Decimal(1)}
    ]
