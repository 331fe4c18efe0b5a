"""Rows of an attached partition that were never sent are a gap until a new baseline has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.capture.partition_notes import ATTACHED
from tailrace.errors import GapError
from tailrace.state import commands
from tailrace.state.capture_gaps import of_table

from .task_home import ITEM, item
from .test_capture_gaps import baseline, begun, order, table

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "then",
    [(), (commands.REMOVE, commands.ADD), (commands.ANEW,), (commands.RESYNC_EXACT,), (commands.REMOVE,)],
    ids=str,
)
def test_rows_of_a_partition_are_missing_however_its_baseline_comes(
    tmp_path: Path, then: tuple[str, ...]
) -> None:
    home, taken = begun(tmp_path), then not in ((), (commands.REMOVE,))
    # The new baseline answers the orders up to the second.
    for number, action in enumerate((commands.SUSPEND, *then), 2 - len(then)):
        why = ATTACHED.format("shop.item_1") if action == commands.SUSPEND else ""
        order(home, number, action, 14 + number, commands.CAPTURE if why else "me", why)
    home.store((16, "U", item(1, "d")))
    if taken:
        baseline(home, [item(1, "d"), item(2, "of the partition")])
    with pytest.raises(GapError, match="partitions with rows"):
        table(home).net(12, 16)
    assert of_table(home.task, ITEM)[0].closed == taken


def test_a_table_that_is_resumed_has_no_gap(tmp_path: Path) -> None:
    home = begun(tmp_path)
    order(home, 1, commands.SUSPEND, 14, commands.CAPTURE, ATTACHED.format("shop.item_1"))
    order(home, 2, commands.RESUME, 15)
    home.store((16, "U", item(1, "d")))
    assert [r["name"] for r in table(home).net(12, 16).rows()][-1] == "d"
