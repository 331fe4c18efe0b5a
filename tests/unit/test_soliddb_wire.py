"""solidDB's row layouts and values: literal bytes, and a plain-Python model of both layouts."""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, FormatError
from tailrace.model.types import arrow_type
from tailrace.wire import soliddb, soliddb_rows
from tailrace.wire.soliddb import RowField, Style

from ..examples import examples

pytestmark = pytest.mark.unit
EPOCH = datetime(1970, 1, 1)


def one(kind: str, type: str, raw: bytes | None, **style: Any) -> Any:
    """The value of one raw value, or its reason."""
    field = RowField("c", kind, type)
    values, wrong = soliddb.decode_values(field, pa.array([raw], pa.binary()), Style(**style))
    assert values.type == arrow_type(type)
    if wrong is not None and wrong.to_pylist()[0]:
        assert values.to_pylist() == [None]
        return "wrong"
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us")).cast(pa.string()).to_pylist()[0]
    return values.to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "type", "raw", "value"),
    [
        ("INTEGER", "int", b"\xff\xff\xff\xfe", -2),
        ("INTEGER", "int", b"\xff\xff\xfe", "wrong"),
        ("INTEGER", "boolean", b"\0\0\0\1", True),
        ("INTEGER", "boolean", b"\0\0\0\2", "wrong"),
        ("INTEGER", "smallint", b"\0\0\xff\xff", "wrong"),
        ("INTEGER", "smallint", b"\0\0\0\xff", 255),
        ("BIGINT", "bigint", b"\x80" + b"\0" * 7, -(2**63)),
        ("DOUBLE", "double", struct.pack(">d", 0.1), 0.1),
        ("DOUBLE", "float", struct.pack(">d", 1e300), "wrong"),
        ("DATE", "date", bytes.fromhex("07E8021D00000000000000"), date(2024, 2, 29)),
        ("DATE", "date", bytes.fromhex("87E8021D00000000000000"), date(2024, 2, 29)),  # the bias
        ("DATE", "date", bytes.fromhex("07E7021D00000000000000"), "wrong"),  # 2023 was no leap year
        ("DATE", "date", bytes.fromhex("07E80D1D00000000000000"), "wrong"),
        ("DATE", "date", bytes.fromhex("07E8021D000000000000"), "wrong"),
        ("DATE", "timestamp_ntz", bytes.fromhex("87E80C1F173B3B3B9AC9FF"), "2024-12-31 23:59:59.999999"),
        ("DATE", "timestamp_ntz", bytes.fromhex("87E80C1F173B3B3B9ACA00"), "wrong"),
        ("DATE", "timestamp_ntz", bytes.fromhex("0001010100000000000000"), "0001-01-01 00:00:00.000000"),
        ("DATE", "string", bytes.fromhex("80000000010203000000FF"), "01:02:03.000000255"),
        ("DATE", "string", bytes.fromhex("80000000010203" + "00000000"), "01:02:03"),
        ("DFLOAT", "decimal(12,2)", b"-12.5", Decimal("-12.50")),
        ("DFLOAT", "decimal(12,2)", b"+1.25E1\0", Decimal("12.50")),
        ("DFLOAT", "decimal(12,2)", b"1.234", "wrong"),
        ("DFLOAT", "decimal(12,2)", b"NaN", "wrong"),
        ("DFLOAT", "string", b"1" * 52, "1" * 52),
        ("DFLOAT", "string", b"1,5", "wrong"),
        ("CHAR", "string", b"a\0", "a"),
        ("CHAR", "string", b"a\0\0", "a\0"),
        ("CHAR", "string", b"a", "a"),
        ("CHAR", "string", b"\0", ""),
        ("CHAR", "string", b"\xff\0", "wrong"),
        ("UNICODE", "string", "é🚀".encode("utf-16-be") + b"\0", "é🚀"),
        ("UNICODE", "string", "é".encode("utf-16-be"), "é"),
        ("UNICODE", "string", b"\0a\1", "wrong"),
        ("UNICODE", "string", b"\xd8\x00\0", "wrong"),  # half of a pair
        ("BINARY", "binary", b"a\0", b"a\0"),
    ],
)  # fmt: skip
def test_values(kind: str, type: str, raw: bytes, value: Any) -> None:
    assert one(kind, type, raw) == value
    assert one(kind, type, None) is None


def test_latin_1() -> None:
    assert one("CHAR", "string", b"\xe9\0", char="latin-1") == "é"
    field = RowField("c", "CHAR", "string")
    style = Style(char="latin-1")
    raw = soliddb.encode_values(field, pa.array(["é", None, "", "ÿa"]), style)
    assert raw.to_pylist() == [b"\xe9\0", None, b"\0", b"\xffa\0"]
    with pytest.raises(FormatError, match="not latin-1"):
        soliddb.encode_values(field, pa.array(["€"]), style)


def test_a_lone_surrogate_does_not_reach_over_rows() -> None:
    raw = pa.array([b"\xd8\x3d", b"\xde\x80", "🚀".encode("utf-16-be"), None])
    text, wrong = soliddb.decode_values(RowField("c", "UNICODE", "string"), raw, Style())
    assert text.to_pylist() == [None, None, "🚀", None]
    assert wrong is not None
    assert wrong.to_pylist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("layout", "data", "why"),
    [
        ("A", b"", "DATA ends before column 1"),
        ("A", b"\x01", "DATA ends in column 1"),
        ("A", b"\xfe\x01", "DATA ends in column 1"),
        ("A", b"\xff\x00\x00\x00\x00", "column 1 refers to a blob outside DATA"),
        ("A", b"\x00", "DATA ends before column 2"),
        ("A", b"\x00\x00\x00", "bytes left over after the last column"),
        ("B", b"\x00\x00", "DATA ends in column 1"),
        ("B", b"\xff\xff\xff\xff", "DATA ends before column 2"),
        ("B", b"\xff\xff\xff\xfe\x00\x00\x00\x00", "column 1 has an impossible length"),
        ("B", b"\x7f\xff\xff\xff\x00\x00\x00\x00", "DATA ends in column 1"),
    ],
)
def test_rows_that_are_wrong(layout: str, data: bytes, why: str) -> None:
    good = b"\x00\x00" if layout == "A" else b"\xff" * 8
    rows = soliddb_rows.split(pa.array([good, data, good]), 2, soliddb_rows.LAYOUTS[layout])
    assert rows.why.to_pylist() == [None, why, None]
    assert [v.to_pylist()[0] for v in rows.values] == [None, None]


def test_a_layout_of_ones_own() -> None:
    assert soliddb_rows.row_layout(f"{__name__}:MINE") is MINE
    with pytest.raises(ConfigError, match="cannot be imported"):
        soliddb_rows.row_layout("nowhere:MINE")
    with pytest.raises(ConfigError, match="is not a RowLayout"):
        soliddb_rows.row_layout("tailrace.wire.soliddb:KINDS")


MINE = soliddb_rows.RowLayout(
    "mine", "", soliddb_rows.LAYOUTS["B"].heads, soliddb_rows.LAYOUTS["B"].lengths, empty_is_null=False
)


# -- the model


def model_row(values: list[bytes | None], layout: str) -> bytes:
    """One row, as the sheet words the two candidates."""
    made = b""
    for v in values:
        if layout == "B":
            made += struct.pack(">i", -1 if v is None else len(v)) + (v or b"")
        elif v is None or not v:
            made += b"\0"
        else:
            made += (bytes([len(v)]) if len(v) <= 0xFD else b"\xfe" + struct.pack("<I", len(v))) + v
    return made


def model_value(kind: str, value: Any, style: Style) -> bytes | None:  # noqa: PLR0911 - a case a kind
    nul = b"\0" if style.trailing_nul else b""
    if value is None:
        return None
    if kind in ("INTEGER", "BIGINT"):
        return struct.pack(">i" if kind == "INTEGER" else ">q", int(value))
    if kind == "DOUBLE":
        return struct.pack(">d", value)
    if kind == "CHAR":
        return value.encode(style.char) + nul
    if kind == "UNICODE":
        return value.encode("utf-16-be") + nul
    if kind == "DFLOAT":
        return f"{value:f}".encode()
    if kind == "DATE":
        at = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        year = at.year + (0x8000 if style.year_bias else 0)
        clock = bytes([at.month, at.day, at.hour, at.minute, at.second])
        return struct.pack(">H", year) + clock + struct.pack(">I", at.microsecond * 1000)
    return bytes(value)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)
FIELDS: list[tuple[RowField, st.SearchStrategy[Any]]] = [
    (RowField("i", "INTEGER", "int"), st.integers(-(2**31), 2**31 - 1)),
    (RowField("f", "INTEGER", "boolean"), st.booleans()),
    (RowField("l", "BIGINT", "bigint"), st.integers(-(2**63), 2**63 - 1)),
    (RowField("d", "DOUBLE", "double"), st.floats(allow_nan=False)),
    (RowField("c", "CHAR", "string"), TEXT),
    (RowField("u", "UNICODE", "string"), TEXT),
    (RowField("b", "BINARY", "binary"), st.binary(min_size=1, max_size=300)),
    (RowField("t", "DATE", "timestamp_ntz"), st.datetimes()),
    (RowField("a", "DATE", "date"), st.dates()),
    (RowField("n", "DFLOAT", "decimal(20,4)"), st.decimals(-(10**15), 10**15, places=4)),
    (RowField("z", "DFLOAT", "decimal(20,0)"), st.integers(-(10**19), 10**19).map(Decimal)),
]


@examples(15)
@given(data=st.data())
def test_there_and_back_as_the_model_says(data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=6))
    rows = data.draw(st.lists(st.tuples(*[st.none() | s for _, s in some]), max_size=8))
    style = Style(
        data.draw(st.sampled_from("AB")), "utf-8", data.draw(st.booleans()), data.draw(st.booleans())
    )
    if style.layout == "A" and not style.trailing_nul:  # the empty string is NULL there
        rows = [tuple(None if v == "" else v for v in row) for row in rows]
    fields = [f for f, _ in some]
    columns = [pa.array([r[k] for r in rows], arrow_type(f.type)) for k, f in enumerate(fields)]
    want = [
        model_row([model_value(f.kind, v, style) for f, v in zip(fields, r, strict=True)], style.layout)
        for r in rows
    ]
    made = soliddb.encode(columns, fields, style)
    assert made.to_pylist() == want
    back = soliddb.decode(made, fields, style)
    assert back.why.null_count == len(rows)
    assert all(back.exact.to_pylist())
    assert back.columns == columns


@examples(15)
@given(st.lists(st.binary(max_size=40), max_size=6), st.sampled_from("AB"))
def test_any_bytes_give_values_or_a_reason(rows: list[bytes], layout: str) -> None:
    fields = [f for f, _ in FIELDS]
    found = soliddb.decode(pa.array(rows, pa.binary()), fields, Style(layout))
    assert [len(c) for c in found.columns] == [len(rows)] * len(fields)
    again = soliddb.encode(found.columns, fields, Style(layout))
    for data, made, exact, why in zip(
        rows, again.to_pylist(), found.exact.to_pylist(), found.why.to_pylist(), strict=True
    ):
        assert exact == (why is None and made == data)


def test_every_wrong_value_is_named() -> None:
    fields = [
        RowField("a", "INTEGER", "int"),
        RowField("b", "DFLOAT", "decimal(5,2)"),
        RowField("c", "BIGINT", "bigint"),
    ]
    good = model_row([b"\0\0\0\1", b"1", None], "A")
    rows = [good, model_row([b"\1", b"x", b"\1"], "A"), model_row([None, b"x", None], "A"), good[:2]]
    assert soliddb.decode(pa.array(rows), fields, Style()).why.to_pylist() == [
        None,
        "a is not valid as INTEGER of type int; b is not valid as DFLOAT of type decimal(5,2); c is not valid as BIGINT of type bigint",
        "b is not valid as DFLOAT of type decimal(5,2)",
        "DATA ends in column 1",
    ]


def test_slices_and_no_rows() -> None:
    field = [RowField("c", "CHAR", "string"), RowField("t", "DATE", "string")]
    whole = soliddb.encode(
        [pa.array(["a", None, "c"]), pa.array(["01:02:03", "23:59:59.5", None])], field, Style()
    )
    found = soliddb.decode(whole[1:], field, Style())
    assert [c.to_pylist() for c in found.columns] == [[None, "c"], ["23:59:59.500000000", None]]
    again = soliddb.encode([c[1:] for c in found.columns], field, Style())
    assert again.to_pylist() == whole[2:].to_pylist()
    none = soliddb.decode(pa.array([], pa.binary()), field, Style())
    assert [len(c) for c in none.columns] == [0, 0]


def test_a_date_without_a_place_is_an_error() -> None:
    with pytest.raises(FormatError, match="solidDB cannot represent the date"):
        soliddb.encode([pa.array(["25:00"])], [RowField("t", "DATE", "string")], Style())
    far = pa.array([0, -735_000], pa.int32()).cast(pa.date32())
    with pytest.raises(FormatError, match="solidDB cannot represent the date -0043-08-22"):
        soliddb.encode([far], [RowField("d", "DATE", "date")], Style())


def test_a_zone_is_utc() -> None:
    at = pa.array([datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))], pa.timestamp("us", "UTC"))
    raw = soliddb.encode_values(RowField("t", "DATE", "timestamp"), at, Style())
    assert raw.to_pylist() == [bytes.fromhex("07E801010A000000000000")]


ANY = [
    RowField("i", "INTEGER", "int"), RowField("f", "INTEGER", "boolean"), RowField("b", "BIGINT", "bigint"),
    RowField("d", "DOUBLE", "double"), RowField("r", "DOUBLE", "float"), RowField("c", "CHAR", "string"),
    RowField("u", "UNICODE", "string"), RowField("y", "BINARY", "binary"), RowField("n", "DFLOAT", "decimal(9,2)"),
    RowField("t", "DATE", "timestamp_ntz"), RowField("day", "DATE", "date"), RowField("h", "DATE", "string"),
]  # fmt: skip
MOMENT = b"\x07\xea\x03\x04\x05\x06\x07\x00\x01\xe2\x40"
RAW = {
    "INTEGER": [b"\0\0\0\1", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0"],
    "BIGINT": [bytes(8), b"\x80" + bytes(7), bytes(4)],
    "DOUBLE": [bytes(8), b"\x3f\xf0" + bytes(6), b"\x3f\xb9\x99\x99\x99\x99\x99\x9a", b"\x7f\xf0" + bytes(6)],
    "CHAR": [b"a", b"a\0", b"a\0\0", b"\0", b"\xff", b"x" * 300],
    "UNICODE": [b"\0a", b"\0a\0", b"\0", b"\xd8\0", b"\0a\0\0", b"\xd8\x3d\xde\x80\0"],
    "BINARY": [b"\0", b"ab"],
    "DFLOAT": [b"1", b"1.50", b"1.5", b"+1.50", b"1.50\0", b"1E2", b"x"],
    "DATE": [MOMENT, b"\x87" + MOMENT[1:], MOMENT[:4] + bytes(7), MOMENT[:-1] + b"\0", bytes(4) + MOMENT[4:7] + bytes(4)],
}  # fmt: skip


@examples(12)
@given(st.data(), st.sampled_from("AB"), st.booleans(), st.booleans())
def test_exact_says_whether_writing_gives_the_same_bytes(
    data: st.DataObject, layout: str, trailing_nul: bool, year_bias: bool
) -> None:
    """The quick look at each column against all of the row, written again."""
    style = Style(layout, "utf-8", year_bias, trailing_nul)
    row = st.tuples(*[st.none() | st.sampled_from(RAW[f.kind]) for f in ANY])
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    whole = soliddb_rows.join(
        [pa.array([r[k] for r in rows], pa.binary()) for k in range(len(ANY))],
        len(rows),
        soliddb_rows.row_layout(layout),
    )
    odd = data.draw(st.sampled_from([b"", b"\xfe\4\0\0\0", b"\0"]))
    texts = [odd + t[1:] if odd and n % 2 else t for n, t in enumerate(whole.to_pylist())]
    found = soliddb.decode(pa.array([*texts, None]), ANY, style)
    fine = [why is None for why in found.why.to_pylist()]
    again = soliddb.encode([c.filter(pa.array(fine)) for c in found.columns], ANY, style).to_pylist()
    want = [
        ok and again[sum(fine[:n])] == text
        for n, (ok, text) in enumerate(zip(fine, [*texts, None], strict=True))
    ]
    assert found.exact.to_pylist() == want


def test_nanoseconds_are_cut_and_told() -> None:
    start, field = "0B07E8021D000000", RowField("t", "DATE", "timestamp_ntz")
    data = [bytes.fromhex(start + f"{n:08X}") for n in (1000, 1999, 999)]
    found = soliddb.decode(pa.array(data), [field], Style())
    assert [v.microsecond for v in found.columns[0].to_pylist()] == [1, 1, 0]
    assert found.finer.to_pylist() == [False, True, True]
    assert found.exact.to_pylist() == [True, False, False]
