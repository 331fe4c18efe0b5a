"""What `tailrace apply` shows fits 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tailrace.cli.screen_formats import applied, remarks

pytestmark = pytest.mark.unit
ROW = {"table": "shop.item", "I": 3, "U": 3, "D": 1, "T": 0, "up to": 24, "inserted": 2, "updated": 0,
       "deleted": 0, "plan": "append"}  # fmt: skip
RULED = ROW | {"actions": {"I": 3, "M": 3, "D": 1}, "conflicts": {"delete_missing": 1}, "flagged": 1,
               "suspended": "delete_missing at change_seq 7"}  # fmt: skip


def shown(row: dict[str, object]) -> str:
    """What stands in the cells, in one line."""
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(applied([row]))
    assert isinstance(console.file, io.StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    return " ".join(" ".join(rows).replace("│", " ").split())


def test_it_is_a_line_a_table() -> None:
    assert shown(ROW) == "shop.item I 3, U 3, D 1 24 2, 0, 0 append"
    assert shown(RULED).startswith("shop.item ") and "…" not in shown(RULED)
    said = ["shop.item is suspended: delete_missing at change_seq 7", "note: shop.note has no key"]
    assert remarks({"tables": [ROW, RULED], "notes": ["shop.note has no key"]}) == said
    dry = ROW | {"suspended": "would stop: delete_missing at change_seq 7"}
    assert remarks({"tables": [dry], "notes": []}) == [
        "shop.item: would stop: delete_missing at change_seq 7"
    ]
    assert shown({"table": "shop.item", "suspended": "it waits"}) == "shop.item 0, 0, 0"
