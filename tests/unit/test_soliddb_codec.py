"""DATA in batches: records of several layouts, of marks, and of none."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import FormatError
from tailrace.formats.soliddb.codec import Decoding, Encoding
from tailrace.formats.soliddb.tables import SolidLayout, union
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


WAS = (
    RowField("id", "INTEGER", "int"),
    RowField("v", "DFLOAT", "decimal(20,10)"),
    RowField("f", "INTEGER", "boolean"),
)
BYTES = (RowField("id", "INTEGER", "int"), RowField("v", "BINARY", "binary"), RowField("f", "INTEGER", "int"))
TEXT = (RowField("id", "INTEGER", "int"), RowField("v", "CHAR", "string"), RowField("f", "INTEGER", "int"))


def test_values_of_a_column_whose_type_changed_are_those_of_the_log() -> None:
    layouts = [SolidLayout(1, bytes([n]), "t", ("t",), x, ()) for n, x in enumerate((WAS, BYTES, TEXT))]
    columns = tuple(union(layouts))
    assert columns == (("id", "int"), ("v", "string"), ("f", "int"))
    one, null = b"\4\0\0\0\1", b"\0"
    data = pa.array(
        [
            one + b"\x0c0.0000000000" + one,
            one + b"\x0c0.0000000015" + b"\4\0\0\0\0",
            one + b"\2\xff\xfe" + b"\4\0\0\0\5",
            one + null + null,
            one + b"\2x\0" + null,
        ]
    )
    layout, recid = pa.array([0, 0, 1, 1, 2], pa.int32()), pa.array([1] * 5, pa.int32())
    fields = (WAS, BYTES, TEXT)
    *found, exact, bad, _ = Decoding(fields, columns, STYLE).decode(data, layout, recid)
    assert [c.to_pylist() for c in found] == [
        [1, 1, 1, 1, 1],
        ["0.0000000000", "0.0000000015", "FFFE", None, "x"],
        [1, 0, 5, None, None],
    ]
    assert (exact.to_pylist(), bad.null_count) == ([True] * 5, 5)
    again = Encoding(fields, tuple(c for c, _ in columns), STYLE)
    assert again.encode(found, layout) == data
    with pytest.raises(FormatError, match="cannot be written as binary") as refused:
        again.encode([pa.array([1]), pa.array(["no hex"]), pa.array([1])], pa.array([1]))
    assert refused.value.where == "column v"


def test_values_of_a_column_that_was_dropped_are_not_taken() -> None:
    was = (OLD[0], RowField("v", "CHAR", "string", taken=False))
    data, layout = pa.array([b"\4\0\0\0\1\2x\0", b"\4\0\0\0\2\2y\0"]), pa.array([0, 1], pa.int32())
    found = Decoding((was, OLD), (("id", "int"), ("v", "string")), STYLE).decode(data, layout, layout)
    assert [c.to_pylist() for c in found[:3]] == [[1, 2], [None, "y"], [False, True]]
    again = Encoding((was, OLD), ("id", "v"), STYLE).encode(
        [pa.array([1, 2], pa.int32()), pa.array(["z", "y"])], layout
    )
    assert again.to_pylist() == [b"\4\0\0\0\1\0", data[1].as_py()]
