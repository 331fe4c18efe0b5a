"""Values that a layout gives another type: the value, or NULL when it would be another one there."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from itertools import zip_longest
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.formats.types import as_type

from .literal_tables import table

pytestmark = pytest.mark.spark
GONE = None
CASES: dict[tuple[str, str], dict[Any, Any]] = {
    ("string", "decimal(10,2)"): {
        " 1.20 ": "1.20", "1.2000": "1.20", "-7": "-7.00", "1.5e2": "150.00", ".5": "0.50", "12345678.9": "12345678.90",
        "1.239": GONE, "1.005": GONE, "0.001": GONE, "1e-3": GONE, "1.239E0": GONE, "123456789.1": GONE, "x": GONE,
        "1.20\t": "1.20", "120e-2": "1.20", "1200E-3": "1.20", "-0e-9": "0.00", "1e": GONE, "e1": GONE, "1e99999999999": GONE,
    },
    ("string", "decimal(38,10)"): {
        "1.1234567890": "1.1234567890", "1.12345678901": GONE, "12345678901234567890.00000000005E0": GONE,
        "12345678901234567890.0000000005E0": "12345678901234567890.0000000005", "1.2345678901E-1": GONE,
        "1234567890123456789012345678.0000000001e0": "1234567890123456789012345678.0000000001",
        "9.99999999999999999999999999999999999999E9": GONE, "1e-100000": GONE, "1e-1000000000": GONE,
        "1e2147483647": GONE, "0e-2147483647": GONE, "1e99999999999999999999": GONE, "1e-99999999999999999999": GONE, "0e-40": "0.0000000000",
    },
    ("string", "decimal(5,0)"): {"12": "12", "12.": "12", "12.0": "12", "12.5": GONE, "1.5E1": "15", "1.55e1": GONE, "12000e-3": "12"},
    ("string", "float"): {
        "1.1": "1.1", "0": "0.0", "0e5": "0.0", "-0.00": "-0.0", "Infinity": "Infinity", "-inf": "-Infinity", "NaN": "NaN",
        "1e39": GONE, "1e-60": GONE, "-1e39": GONE, "1.5f": GONE, "1d": GONE, "1.D": GONE,
    },
    ("string", "double"): {"0.1": "0.1", "1e39": "1.0E39", "1e400": GONE, "1e-400": GONE},
    ("string", "int"): {"1": "1", "1.5": GONE, "99999999999": GONE},
    ("string", "date"): {
        "2026-01-02": "2026-01-02", "0001-01-01": "0001-01-01", "9999-12-31": "9999-12-31", "-0044-03-15": GONE,
        "0000-12-31": GONE, "+10000-01-01": GONE, "2026-02-30": GONE,
        "2026-01-02 00:00:00": "2026-01-02", "2026-01-02T00:00:00.000": "2026-01-02", "2026-01-02 10:00:00": GONE,
        "2026-01-02 x": GONE, "2026-01-02 24:61:00": GONE, "2026": GONE, "2026-01": GONE,
    },
    ("string", "timestamp_ntz"): {
        "2026-01-02": "2026-01-02 00:00:00", "2026-01-02 3:04": "2026-01-02 03:04:00", "10:20:30": GONE, "2026": GONE,
        "2026-01-02 03:04:05+01:00": GONE, "2026-01-02T03:04:05.6": "2026-01-02 03:04:05.6", "T10:20": GONE,"9999-12-31 23:59:59.999999": "9999-12-31 23:59:59.999999", "-0001-01-01 00:00:00": GONE},
    ("string", "timestamp"): {
        "2026-01-02 03:04:05Z": "2026-01-02 03:04:05", "2026-01-02T03:04:05.6 +01:00": "2026-01-02 02:04:05.6",
        "2026-01-02 03:04:05 Europe/Berlin": "2026-01-02 02:04:05", "2026-01-02 03:04:05 UTC+1": "2026-01-02 02:04:05",
        "10:20:30": GONE, "1:2": GONE, "2026": GONE, "0001-01-01 00:00:00": "0001-01-01 00:00:00", "0000-12-31 23:00:00": GONE},
    ("double", "decimal(10,2)"): {1.1: "1.10", 1.239: GONE, 1e12: GONE},
    ("double", "float"): {0.1: "0.1", 1e39: GONE, 1e-60: GONE, 0.0: "0.0", float("inf"): "Infinity"},
    ("double", "int"): {2.0: "2", 2.5: GONE},
    ("decimal(12,4)", "decimal(10,2)"): {"1.2500": "1.25", "1.2501": GONE},
    ("decimal(12,4)", "bigint"): {"3.0000": "3", "3.1000": GONE},
    ("bigint", "int"): {5: "5", 5_000_000_000: GONE},
}  # fmt: skip


@pytest.mark.slow
def test_no_value_becomes_another_one(spark: SparkSession) -> None:
    texts = zip_longest(*(map(str, cases) for cases in CASES.values()))
    rows = table(spark, texts, ", ".join(f"v{n} string" for n in range(len(CASES))))
    made = [
        as_type(F.col(f"v{n}").cast(came), kind, came).cast("string") for n, (came, kind) in enumerate(CASES)
    ]
    found = rows.select(*(one.alias(f"v{n}") for n, one in enumerate(made))).collect()
    for n, (kinds, cases) in enumerate(CASES.items()):
        assert [r[n] for r in found[: len(cases)]] == list(cases.values()), kinds


def test_bytes_are_pairs_of_hex_digits(spark: SparkSession) -> None:
    cases = {"00FF": b"\0\xff", "0fF0": b"\x0f\xf0", "": b"", "0FF": GONE, "F": GONE, "0G": GONE, " FF": GONE}
    rows = table(spark, [(v,) for v in cases], "v string")
    found = rows.select(
        as_type(F.col("v"), "binary"), as_type(F.concat("v", F.lit(";"), "v"), "array<binary>")
    ).collect()
    want = [None if v is None else bytearray(v) for v in cases.values()]
    assert [r[0] for r in found] == want
    assert [r[1] for r in found] == [None if v is None else [v, v] for v in want]


def digits(some: random.Random) -> str:
    """A number's text: zeros at both ends, a point and an exponent anywhere, or none."""
    made = (
        "0" * some.choice((0, 0, 1, 3))
        + str(some.randrange(10 ** some.randint(1, 38)))
        + "0" * some.choice((0, 0, 2, 9))
    )
    point = some.randint(0, len(made))
    made = some.choice((made, f"{made[:point]}.{made[point:]}"))
    power = some.choice(("", f"{some.choice('eE')}{some.choice(('', '+', '-'))}{some.randint(0, 45)}"))
    return some.choice(("", "-", "+")) + made + power


def exact(text: str, precision: int, scale: int) -> Decimal | None:
    whole = Decimal(text).scaleb(scale, Context(200, Emax=999, Emin=-999))
    there = whole == whole.to_integral_value() and abs(whole) < 10**precision
    return Decimal(text) if there else None


def test_decimals_are_those_of_python_or_none(spark: SparkSession) -> None:
    some = random.Random(7)
    texts = [t for t in (digits(some) for _ in range(4000)) if Decimal(t)]  # Spark takes no 0e38
    kinds = [(10, 2), (38, 10), (38, 0), (38, 38), (5, 0)]
    made = [as_type(F.col("v"), f"decimal({p},{s})").alias(f"d{n}") for n, (p, s) in enumerate(kinds)]
    found = table(spark, [(t,) for t in texts], "v string").select("v", *made).collect()
    want = [(t, *(exact(t, *kind) for kind in kinds)) for t in texts]
    assert [tuple(r) for r in found] == want
    assert all(30 < sum(r[n + 1] is not None for r in want) < 3000 for n in range(len(kinds)))
