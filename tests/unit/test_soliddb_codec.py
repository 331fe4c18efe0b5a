"""DATA in batches: records of several layouts, of marks, and of none."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.formats.soliddb.codec import Decoding, Encoding
from tailrace.wire.soliddb import RowField, Style

pytestmark = pytest.mark.unit
OLD = (RowField("id", "INTEGER", "int"), RowField("v", "CHAR", "string"))
NEW = (
    RowField("v", "UNICODE", "string"),
    RowField("id", "BIGINT", "bigint"),
    RowField("n", "DFLOAT", "decimal(5,2)"),
)
COLUMNS = (("v", "string"), ("id", "bigint"), ("n", "decimal(5,2)"))
STYLE = Style()
DECODING = Decoding((OLD, NEW), COLUMNS, STYLE)
ENCODING = Encoding((OLD, NEW), tuple(c for c, _ in COLUMNS), STYLE)
ROW = st.tuples(
    st.sampled_from([0, 1, None]),
    st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.decimals(-999, 999, places=2),
)


@given(st.lists(ROW, max_size=12))
def test_batches_of_several_layouts(rows: list[tuple[object, ...]]) -> None:
    layout = pa.array([r[0] for r in rows], pa.int32())
    types = [pa.string(), pa.int64(), pa.decimal128(5, 2)]
    values = [pa.array([r[k + 1] for r in rows], t) for k, t in enumerate(types)]
    data = ENCODING.encode(values, layout)
    assert data.is_null().to_pylist() == [r[0] is None for r in rows]
    recid = pa.array([7 if r[0] is None else 1 for r in rows], pa.int32())
    *found, exact, bad, _ = DECODING.decode(data, layout, recid)
    want = [
        [None if r[0] is None else r[k + 1] if k < 2 or r[0] == 1 else None for r in rows] for k in range(3)
    ]
    assert [c.to_pylist() for c in found] == want
    assert exact.to_pylist() == [r[0] is not None for r in rows]
    assert bad.null_count == len(rows)


def test_reasons() -> None:
    data = pa.array([b"\4\0\0\0\1\0", b"\4\0\0\0", None])
    *found, exact, bad, _ = DECODING.decode(
        data, pa.array([0, 0, None], pa.int32()), pa.array([1, 3, 4], pa.int32())
    )
    assert found[1].to_pylist() == [1, None, None]
    assert exact.to_pylist() == [True, False, False]
    assert bad.to_pylist() == [
        None,
        "DATA ends in column 1",
        "no layout of its table is valid at its LOGADDR",
    ]
