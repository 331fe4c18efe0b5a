"""Values in another type: the same ones, or none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.wire.exact_values import exactly

pytestmark = pytest.mark.unit
UTC, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("values", "kind", "fits"),
    [
        (pa.array([1.5, None, float("nan")], pa.float64()), pa.float32(), True),
        (pa.array([1.1], pa.float64()), pa.float32(), False),
        (pa.array([1e300], pa.float64()), pa.float32(), False),
        (pa.array([7, None], pa.int64()), pa.int32(), True),
        (pa.array([7], pa.int16()), pa.decimal128(12, 2), True),
        (pa.array([2**40], pa.int64()), pa.int32(), False),
        (pa.array([7], pa.int64()), UTC, False),
        (pa.array([7], NAIVE), UTC, False),
        (pa.array([7], pa.timestamp("us", "America/New_York")), NAIVE, False),
        (pa.array([7], pa.timestamp("us", "America/New_York")), UTC, True),
        (pa.array([7], pa.timestamp("ns", "UTC")), UTC, False),
        (pa.array(["a"]).dictionary_encode(), pa.string(), True),
        (pa.array([b"a"]), pa.string(), False),
        (pa.nulls(2), pa.int32(), True),
        (pa.array([], pa.float64()), pa.float32(), True),
        (pa.array([None], pa.float32()), pa.float64(), True),
        (pa.array([1.0, None], pa.float64()), pa.int64(), True),
        (pa.array([1.5], pa.float64()), pa.int64(), False),
        (pa.array([2**53 + 1], pa.int64()), pa.float64(), False),
        (pa.array([[1.1]], pa.list_(pa.float64())), pa.list_(pa.float32()), False),
        (pa.array([[]], pa.list_(pa.null())), pa.list_(pa.int32()), True),
        (pa.array([1.1]).dictionary_encode(), pa.float32(), False),
    ],
)  # fmt: skip
def test_values_are_the_same_in_another_type_or_are_not_of_it(
    values: pa.Array, kind: pa.DataType, fits: bool
) -> None:
    found, why = exactly(pa.chunked_array([values]), kind)
    assert (why is None) == fits
    if fits:
        assert found.type == kind
        assert str(found.to_pylist()) == str(values.cast(kind).to_pylist())
