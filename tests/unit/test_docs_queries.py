"""The examples of docs/queries.md, docs/python.md and docs/histories.md, run over the tables that the first page shows."""

from __future__ import annotations

import doctest
import re
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tailrace.model import mask

from .once import once
from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit
DOCS = Path(__file__).parents[2] / "docs"


def tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a page."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        names, _, *rows = [[c.strip() for c in line.strip("|").split(" |")] for line in block.splitlines()]
        found.append([dict(zip(names, row, strict=True)) for row in rows])
    return found


def row(said: dict[str, str]) -> dict[str, Any]:
    price = said["price"]
    return {"id": int(said["id"]), "name": said["name"], "price": Decimal(price) if price else None}


@once
def shown(folder: Path) -> TaskHome:
    base, changes = tables((DOCS / "queries.md").read_text("utf-8"))[:2]
    home = TaskHome(folder)
    home.baseline([row(r) for r in base], after=10)
    start = 8  # headers before the columns
    for number, images in groupby(changes, lambda one: (int(one["change"]), int(one["transaction"]))):
        stored = []
        for said in images:
            values = row(said)
            if not said["price"]:
                values["header__column_mask"] = mask.encode([start, start + 1])
            stored.append((number[0], said["oper"], values))
        home.store(*stored, transaction=number[1])
    return home


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskHome:
    monkeypatch.chdir(tmp_path)
    return shown(tmp_path)


@pytest.mark.parametrize("page", ["queries.md", "python.md", "histories.md"])
def test_examples_give_what_the_page_shows(shop: TaskHome, page: str) -> None:
    assert shop.task.name == "shop" and ITEM == "shop.item"
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"^```python\n(>>>.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    told: list[str] = []
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    failed = runner.run(test, out=told.append).failed
    assert not failed, "".join(told)
