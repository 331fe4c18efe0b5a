"""What is kept of partitions of which nobody may look whether they came with rows."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.capture.partition_notes import _after
from tailrace.sources.base import Partitions

pytestmark = pytest.mark.unit
BEFORE: dict[str, Any] = {"there": {"7 1": "s.old", "8 1": "s.b"}, "filled": [], "unsure": {"s.old": "then"}}


@pytest.mark.parametrize(
    ("there", "unsure"),
    [
        ({"7 1": "s.old", "8 1": "s.b"}, {"s.old": "then"}),
        ({"7 1": "s.new", "8 1": "s.b"}, {"s.new": "then"}),  # it was renamed
        ({"8 1": "s.b"}, {}),  # it is gone, and its rows with it
        ({"8 1": "s.old"}, {}),  # another one has its name
    ],
)
def test_it_is_kept_as_long_as_the_partition_is_there(there: dict[str, str], unsure: dict[str, str]) -> None:
    assert _after(BEFORE, Partitions(there))["unsure"] == unsure


def test_new_ones_are_kept_with_the_time() -> None:
    found = _after(BEFORE, Partitions({**BEFORE["there"], "9 2": "s.c"}, unsure=["s.c"]))
    assert found["unsure"].keys() == {"s.old", "s.c"} and found["unsure"]["s.c"] > "2026"
    assert _after(None, Partitions({"9 2": "s.c"}, unsure=["s.c"]))["unsure"].keys() == {"s.c"}
