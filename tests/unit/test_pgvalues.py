"""PostgreSQL text -> typed columns: literal extremes, bad values, and decimals against Python's own."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import UnsupportedError
from tailrace.model.types import arrow_type
from tailrace.wire.pgtypes import KINDS
from tailrace.wire.pgvalues import convert, lake_type, markdown

pytestmark = pytest.mark.unit

BAD = object()
UTC = dt.timezone.utc


def read(lake: str, kind: str, texts: list[str | None]) -> list[Any]:
    """The converted values, BAD where the mask says so."""
    values, bad = convert(lake, kind, pa.array(texts, pa.string()))
    values.validate(full=True)
    assert values.type == arrow_type(lake)
    assert len(values) == len(texts)
    if bad is None:
        return list(values.to_pylist())
    marks = bad.to_pylist()
    assert any(marks)
    assert all(not mark or value is None for mark, value in zip(marks, values.to_pylist(), strict=True))
    return [BAD if mark else value for mark, value in zip(marks, values.to_pylist(), strict=True)]


def moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


LAST = "9999-12-31 23:59:59.999999"

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("boolean", "bool", {"t": True, "f": False, "true": BAD, "": BAD}),
    ("smallint", "int2", {"-32768": -32768, "32767": 32767, "32768": BAD}),
    ("int", "int4", {"-2147483648": -(2**31), "2147483647": 2**31 - 1, "2147483648": BAD, "": BAD, "x": BAD}),
    ("bigint", "int8", {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1, str(2**63): BAD}),
    ("int", "text", {"0xFFFFFFFF": BAD, "0X10": BAD, "-0x1": BAD, "16": 16, " 1": BAD, "+3": BAD}),
    ("smallint", "varchar", {"0xFFFF": BAD, "0x": BAD, "x": BAD}),
    ("array<smallint>", "text", {"{0xFFFF}": BAD, "{1,2}": [1, 2]}),
    ("bigint", "oid", {"4294967295": 4294967295}),
    ("bigint", "xid", {"4294967295": 4294967295}),
    ("double", "float8", {"1.7976931348623157e+308": 1.7976931348623157e308, "5e-324": 5e-324, "-0": -0.0}),
    ("double", "float8", {"Infinity": math.inf, "-Infinity": -math.inf, "1e400": BAD, "-1e400": BAD}),
    (
        "float",
        "float4",
        {"3.4028235e+38": 3.4028234663852886e38, "1e-45": 1.401298464324817e-45, "1e39": BAD},
    ),
    ("decimal(12,2)", "numeric", {"1.50": Decimal("1.50"), "-9999999999.99": Decimal("-9999999999.99")}),
    ("decimal(12,2)", "numeric", {"1.5": Decimal("1.50"), "7": Decimal("7.00"), "1.500": Decimal("1.50")}),
    (
        "decimal(12,2)",
        "numeric",
        {"1.555": BAD, "10000000000": BAD, "NaN": BAD, "Infinity": BAD, "-Infinity": BAD},
    ),
    ("decimal(38,0)", "numeric", {"9" * 38: Decimal("9" * 38), "-" + "9" * 38: Decimal("-" + "9" * 38)}),
    ("decimal(38,0)", "numeric", {"9" * 39: BAD, "1" + "0" * 38: BAD, "1" * 200: BAD}),
    ("decimal(38,38)", "numeric", {"0." + "9" * 38: Decimal("0." + "9" * 38), "1": BAD}),
    ("decimal(38,10)", "numeric", {"1" * 28: Decimal("1" * 28), "1" * 29: BAD, "1" * 30: BAD}),
    ("decimal(38,10)", "numeric", {"2." + "0" * 60: Decimal(2), "2." + "0" * 60 + "1": BAD}),
    (
        "decimal(20,5)",
        "float8",
        {"1e+14": Decimal(10**14), "1e-05": Decimal("0.00001"), "1e-06": BAD, "1e300": BAD},
    ),
    (
        "date",
        "date",
        {"2024-02-29": dt.date(2024, 2, 29), "0001-01-01": dt.date.min, "9999-12-31": dt.date.max},
    ),
    ("date", "date", {"infinity": dt.date.max, "-infinity": dt.date.min, "2024-02-29": dt.date(2024, 2, 29)}),
    ("date", "date", {"0044-03-15 BC": BAD, "10000-01-01": BAD, "5874897-12-31": BAD, "2023-02-29": BAD}),
    ("date", "text", {"0000-01-01": BAD, "2024-01-01": dt.date(2024, 1, 1)}),
    ("timestamp_ntz", "timestamp", {"2024-01-02 03:04:05.123456": moment("2024-01-02 03:04:05.123456")}),
    ("timestamp_ntz", "timestamp", {"2024-01-02 03:04:05": moment("2024-01-02 03:04:05"), "": BAD}),
    ("timestamp_ntz", "timestamp", {"2024-01-02 03:04:05.1": moment("2024-01-02 03:04:05.100000")}),
    ("timestamp_ntz", "timestamp", {"infinity": moment(LAST), "-infinity": moment("0001-01-01 00:00:00")}),
    ("timestamp_ntz", "timestamp", {"0044-03-15 12:00:00 BC": BAD, "294276-12-31 23:59:59.999999": BAD}),
    (
        "timestamp_ntz",
        "timestamp",
        {LAST: moment(LAST), "0001-01-01 00:00:00": moment("0001-01-01 00:00:00")},
    ),
    (
        "timestamp",
        "timestamptz",
        {"2024-01-02 03:04:05.123456+00": moment("2024-01-02 03:04:05.123456+00:00")},
    ),
    ("timestamp", "timestamptz", {"2024-01-02 03:04:05+05:30": moment("2024-01-01 21:34:05+00:00")}),
    (
        "timestamp",
        "timestamptz",
        {"infinity": moment(LAST + "+00:00"), "-infinity": dt.datetime.min.replace(tzinfo=UTC)},
    ),
    (
        "timestamp",
        "timestamptz",
        {"0044-03-15 12:00:00+00 BC": BAD, "10000-01-01 00:00:00+00": BAD, "x": BAD},
    ),
    ("binary", "bytea", {"\\x": b"", "\\xdeadBEEF": b"\xde\xad\xbe\xef", "\\x00ff": b"\0\xff"}),
    ("binary", "bytea", {"\\x0": BAD, "": BAD, "abc": BAD, "\\xzz": BAD, "\\x 1": BAD, "\\x41": b"A"}),
    ("string", "text", {"": "", "é漢": "é漢", "\\x": "\\x", "NaN": "NaN"}),
    ("string", "money", {"$1,234.50": "$1,234.50"}),
    ("string", "interval", {"1 year 2 mons 3 days 04:05:06.789": "1 year 2 mons 3 days 04:05:06.789"}),
    # types given by hand
    ("string", "int4", {"7": "7"}),
    ("string", "bytea", {"\\x00": "\\x00"}),
    ("bigint", "numeric", {"12": 12, "12.5": BAD}),
    ("double", "numeric", {"12.5": 12.5, "NaN": math.nan}),
    ("timestamp_ntz", "timestamptz", {"2024-01-02 03:04:05+00": moment("2024-01-02 03:04:05")}),
    ("timestamp", "timestamp", {"2024-01-02 03:04:05": moment("2024-01-02 03:04:05+00:00")}),
    ("timestamp", "date", {"2024-01-02": moment("2024-01-02 00:00:00+00:00")}),
    ("timestamp", "text", {"2024-01-02 03:04:05+00": moment("2024-01-02 03:04:05+00:00")}),
    ("tinyint", "int2", {"127": 127, "128": BAD}),
]


@pytest.mark.parametrize(("lake", "kind", "pairs"), CASES, ids=[f"{lake}<{kind}" for lake, kind, _ in CASES])
def test_values(lake: str, kind: str, pairs: dict[str, Any]) -> None:
    for texts in ([*pairs, None], [None, *pairs]):
        for got, text in zip(read(lake, kind, texts), texts, strict=True):
            want = None if text is None else pairs[text]
            assert got is want or got == want or repr(got) == repr(want) == "nan", text
    # The same in the middle of other, ordinary rows: slices, and the vectorised handling of few bad rows.
    for text, want in pairs.items():
        sliced = pa.array([None, "x", text, None], pa.string()).slice(2, 1)
        values, bad = convert(lake, kind, sliced)
        assert (bad is not None) == (want is BAD), text
        assert values.null_count == (want is BAD)


@pytest.mark.parametrize("kind", [*KINDS, "mood", "_int4"])
def test_no_rows_and_nulls_for_every_kind(kind: str) -> None:
    lake, _ = lake_type(kind, (12 << 16 | 2) + 4)
    assert read(lake, kind, []) == []
    assert read(lake, kind, [None, None]) == [None, None]
    assert read("string", kind, ["as is"]) == ["as is"]


def test_nan() -> None:
    values, bad = convert("double", "float8", pa.array(["NaN", "1"]))
    assert bad is None
    assert math.isnan(values[0].as_py())


def test_one_bad_row_among_many_good_ones() -> None:
    texts = ["2024-01-02 03:04:05"] * 5000
    texts[3210] = "24-01-02"
    values, bad = convert("timestamp_ntz", "timestamp", pa.array(texts))
    assert bad is not None
    assert [row for row, wrong in enumerate(bad.to_pylist()) if wrong] == [3210]
    assert values.null_count == 1


def test_an_unknown_lake_type_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        convert("map<int,int>", "int4", pa.array(["1"]))


@given(
    st.decimals(allow_nan=True, allow_infinity=True).map(lambda d: f"{d:f}" if d.is_finite() else str(d)[:40])
    | st.from_regex(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,40})?", fullmatch=True),
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
)
@example("9" * 39, (38, 0))
@example("1" * 30, (38, 10))
@example("0." + "1" * 39, (38, 38))
def test_decimals_are_exact_or_bad(text: str, size: tuple[int, int]) -> None:
    precision, scale = size
    (got,) = read(f"decimal({precision},{scale})", "numeric", [text])
    with decimal.localcontext(decimal.Context(prec=500)):
        value = Decimal(text)
        scaled = value.scaleb(scale) if value.is_finite() else None
        fits = scaled is not None and scaled == scaled.to_integral_value() and abs(scaled) < 10**precision
        assert got is BAD if not fits else got == value


@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(0, 3))
def test_bytea_round_trip(values: list[bytes | None], skip: int) -> None:
    text = pa.array([None if v is None else "\\x" + v.hex() for v in values], pa.string()).slice(skip)
    got, bad = convert("binary", "bytea", text)
    assert (got.to_pylist(), bad) == (values[skip:], None)


@given(st.lists(st.datetimes()))
def test_timestamps_round_trip(values: list[dt.datetime]) -> None:
    assert read("timestamp_ntz", "timestamp", [v.isoformat(" ") for v in values]) == values
    zoned = [v.replace(tzinfo=UTC) for v in values]
    assert read("timestamp", "timestamptz", [v.isoformat(" ") + "+00" for v in values]) == zoned


@pytest.mark.parametrize(
    ("kind", "typmod", "want"),
    [
        ("numeric", (12 << 16 | 2) + 4, "decimal(12,2)"),
        ("numeric", (38 << 16 | 38) + 4, "decimal(38,38)"),
        ("numeric", (39 << 16 | 2) + 4, "string"),
        ("numeric", (5 << 16 | 0x7FD) + 4, "string"),  # numeric(5,-3)
        ("numeric", (3 << 16 | 5) + 4, "string"),
        ("numeric", -1, "string"),
        ("varchar", 14, "string"),
        ("timestamptz", 3, "timestamp"),
        ("timestamp", -1, "timestamp_ntz"),
        ("mood", -1, "string"),
    ],
)
def test_lake_types(kind: str, typmod: int, want: str) -> None:
    lake, note = lake_type(kind, typmod)
    assert lake == want
    assert (note is not None) == (kind == "numeric" and want == "string")


def test_a_negative_scale_is_named_in_the_note() -> None:
    _, note = lake_type("numeric", (5 << 16 | 0x7FD) + 4)
    assert note is not None
    assert "numeric(5,-3)" in note


def test_the_documentation_page_is_the_generated_one() -> None:
    assert (Path(__file__).parents[2] / "docs" / "types.md").read_text() == markdown()
