"""Ranges of numbers over row groups: each row group is read where its numbers are, and not much too often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.formats.row_groups import MOST_BYTES, RowGroup, ranges

pytestmark = pytest.mark.unit
SPANS = st.lists(
    st.tuples(st.integers(-50, 50), st.integers(0, 20), st.integers(1, 90)), min_size=1, max_size=30
)


@given(SPANS, st.integers(1, 200))
def test_each_number_is_in_one_range_with_all_of_its_row_groups(
    spans: list[tuple[int, int, int]], least: int
) -> None:
    groups = [RowGroup(0, n, low, low + wide, size) for n, (low, wide, size) in enumerate(spans)]
    plan = ranges([groups], least=least)
    if plan is None:
        return
    assert [r.low for r in plan[1:]] == [r.high + 1 for r in plan[:-1]]
    for one in plan:
        assert one.groups == (tuple((0, g.group) for g in groups if g.high >= one.low and g.low <= one.high),)
        assert one.groups[0]
    for number in range(-60, 80):
        assert sum(one.low <= number <= one.high for one in plan) == 1


def test_a_range_begins_where_little_is_read_again() -> None:
    # Two files in the same order, and one that has something of everything.
    two = [RowGroup(file, n, 10 * n + file, 10 * n + 9 + file, 50) for file in (0, 1) for n in range(4)]
    plan = ranges([[*two, RowGroup(2, 0, 0, 50, 10)]], least=60)
    assert plan is not None
    assert [(r.low, len(r.groups[0])) for r in plan[1:]] == [(11, 5), (30, 4)]


def test_no_ranges() -> None:
    big = MOST_BYTES // 3
    assert ranges([[RowGroup(0, n, 0, 20, big) for n in range(4)]]) is None  # one would be too large
    assert ranges([[RowGroup(0, n, n, 50, 90) for n in range(40)]], least=10) is None  # read too often
    assert ranges([[]]) is not None
