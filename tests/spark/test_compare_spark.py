"""Spark's tasks and one process compare with the same functions: they find the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.validate.compare import Files, compare
from tailrace.validate.compare_spark import Frames

from ..unit.test_compare import EVERY, KEYED, OTHERS, rows

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_both_ways_find_the_same(spark: Any) -> None:
    ids = pa.array([1, 2])
    pairs = [
        (rows(id=ids, **EVERY), rows(id=ids, **(EVERY | OTHERS | {"s": EVERY["s"]}))),
        (
            rows(id=[1, 2, 3, 3], **{"a b.`c": ["x", "y", None, None]}),
            rows(id=[9, 2], **{"a b.`c": ["z", "Y"]}),
        ),
    ]
    for left, right in pairs:
        frames = Frames(*(spark.createDataFrame(one.data.to_table()) for one in (left, right)))
        found = [compare("s.t", KEYED, sides, False, 3, 9) for sides in (Files(left, right), frames)]
        assert replace(found[0], seconds=0) == replace(found[1], seconds=0)
    assert [found[0].differing_rows, len(found[0].samples)] == [6, 5]


def test_rows_that_differ_come_with_their_hashes(spark: Any) -> None:
    one, other = (
        spark.createDataFrame([(i, i % 3) for i in ids], "id int, n int") for ids in ([1, 2], [2, 3])
    )
    left, right, shape = Frames(one, other).differing(["id"], 64)
    assert left.columns == right.columns == ["bucket", "hash", "c0", "c1"]
    assert shape.schema.names == ["id", "n"]
    assert [[r["c0"] for r in df.collect()] for df in (left, right)] == [[1], [3]]
