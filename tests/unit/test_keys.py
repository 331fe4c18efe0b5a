"""Keys in numbers, and rows looked up by them, against a dictionary of tuples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.keys import SPREAD, Keys

pytestmark = pytest.mark.unit

NEAR = st.integers(-3, 5)
FAR = st.sampled_from([-(1 << 63), -(1 << 62), -1, 0, 7, 7 + SPREAD, 1 << 40, (1 << 63) - 1])
INTEGERS = NEAR | st.none() | NEAR.map(lambda n: n * 40) | FAR


def columns(rows: list[tuple[int | None, ...]], kinds: list[pa.DataType]) -> list[pa.Array]:
    return [pa.array([r[k] for r in rows], kind) for k, kind in enumerate(kinds)]


@given(st.lists(st.tuples(INTEGERS), min_size=1, max_size=30), st.lists(st.tuples(INTEGERS), max_size=30))
def test_one_column(rows, asked):
    keys = Keys(columns(rows, [pa.int64()]))
    order = list(dict.fromkeys(rows))
    assert keys.place.tolist() == [order.index(r) for r in rows]
    assert keys.last.tolist() == [max(k for k, r in enumerate(rows) if r == one) for one in order]
    found = keys.find(columns(asked, [pa.int64()])).tolist()
    assert found == [order.index(r) if r in order else -1 for r in asked]


@given(
    st.lists(st.tuples(NEAR, NEAR), min_size=1, max_size=30), st.lists(st.tuples(NEAR, INTEGERS), max_size=30)
)
def test_two_columns(rows, asked):
    kinds = [pa.int32(), pa.int64()]
    keys = Keys(columns(rows, kinds))
    number = dict(zip(rows, keys.place.tolist(), strict=True))
    assert sorted(set(number.values())) == list(range(len(keys)))
    assert keys.find(columns(asked, kinds)).tolist() == [number.get(r, -1) for r in asked]


NAN, OTHER_NAN = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)


def test_both_zeros_and_all_nans_are_one_key():
    floats = pa.array(np.array([0.0, -0.0, NAN, OTHER_NAN, 1.5]))
    assert Keys([floats]).place.tolist() == [0, 0, 1, 1, 2]
    assert Keys([floats.cast(pa.float32())]).place.tolist() == [0, 0, 1, 1, 2]
    arrays = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4, 5], pa.int32()), floats)
    assert Keys([arrays]).place.tolist() == [0, 0, 1, 1, 2]
    assert Keys([floats]).find([pa.array(np.array([-0.0, OTHER_NAN, 2.0]))]).tolist() == [0, 1, -1]


def test_integers_far_apart_are_hashed_and_close_ones_are_not():
    assert Keys([pa.array([1, 500_000_000])]).find([pa.array([500_000_000, 2])]).tolist() == [1, -1]
    unsigned = Keys([pa.array([3, 1], pa.uint64())])
    assert unsigned.find([pa.array([1, (1 << 64) - 1], pa.uint64())]).tolist() == [1, -1]
