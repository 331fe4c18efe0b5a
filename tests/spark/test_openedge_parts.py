"""Values in parts: arrays as OpenEdge's texts, and records that were split."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from tailrace.formats.base import RAW, WHY
from tailrace.formats.openedge import tables as oe
from tailrace.formats.openedge.split_records import SPLIT, cut_halves, join_halves
from tailrace.formats.types import join_array, split_array

from .literal_tables import table as literal
from .test_format_openedge import image, table

pytestmark = pytest.mark.spark


def test_arrays_there_and_back(spark):
    arrays = [["a", "", None], ["?"], [";~;", "~"], [None, None], ["x\ny"], [""]]
    df = literal(spark, [(one,) for one in arrays], "a array<string>")
    assert [r[0] for r in df.select(split_array(join_array(F.col("a")))).collect()] == arrays


def test_array_text_is_as_the_vendor_writes_it(spark):
    df = literal(spark, [("a~;b;?;~~;~?;c~d;",), (None,), ("",)], "t string")
    split = split_array(F.col("t"))
    found = [tuple(r) for r in df.select(split, join_array(split)).collect()]
    assert found == [(["a;b", None, "~", "?", "cd", ""], "a~;b;?;~~;~?;cd;"), (None, None), ([""], "")]


# The first half's _Continuation-Position, _ArrayIndex, _Fragment, both halves' values, the whole ones. Positions:
# n 9, s 11, a 12 (array), b 13 (binary).
CASES = {
    "between fields": ((11, 0, 0), {"n": 1, "s": "x"}, {"a": "1;2", "b": b"z"}, (1, "x", "1;2", b"z")),
    "a value cut": ((9, 0, 1), {"n": 1, "s": "he"}, {"s": "llo", "a": "1;2", "b": b"z"}, (1, "hello", "1;2", b"z")),
    "bytes cut": ((12, 0, 1), {"n": 1, "s": "x", "a": "1;2", "b": b"z"}, {"b": b"\0y"}, (1, "x", "1;2", b"z\0y")),
    "first element cut": ((11, 0, 1), {"n": 1, "s": "x", "a": "1;?"}, {"a": "1~;;2", "b": b"z"}, (1, "x", "11~;;2", b"z")),
    "an element cut": ((11, 2, 1), {"n": 1, "s": None, "a": "1;?;c;?"}, {"a": "?;?;d;4", "b": None}, (1, None, "1;?;cd;4", None)),
    "between elements": ((11, 1, 0), {"n": 1, "s": "", "a": "1;?;?"}, {"a": "?;2;3", "b": b"z"}, (1, "", "1;2;3", b"z")),
    "nothing complete": ((8, 0, 0), {}, {"n": 1, "s": "x", "a": "1;2", "b": b""}, (1, "x", "1;2", b"")),
}  # fmt: skip
PLACES = {"n": 9, "s": 11, "a": 12, "b": 13}


@pytest.mark.slow
def test_split_records_in_all_cases_there_and_back(spark):
    rows = []
    for seq, (cut, one, two, _) in enumerate(CASES.values()):
        last = 13 if cut[0] < 13 else 14
        for half in (image(seq, 1, *cut, **one), image(seq, 1, last, 0, 0, **two)):
            rows.append({k: bytearray(v) if isinstance(v, bytes) else v for k, v in half.items()})
    halves = table(spark, oe.CHANGE, rows, {"n": "int", "s": "string", "a": "string", "b": "binary"})
    df = halves.withColumns({WHY: F.lit(None).cast("string"), RAW: F.lit("{}")})
    joined = join_halves(df, PLACES, {"a": 3}).localCheckpoint()
    got = joined.orderBy("_Change-Sequence").select("n", "s", "a", "b", WHY).collect()
    want = [(*whole[:3], whole[3] and bytearray(whole[3]), None) for *_, whole in CASES.values()]
    assert [tuple(r) for r in got] == [
        (a, b, c, bytearray(d) if d == b"" else d, e) for a, b, c, d, e in want
    ]
    again = cut_halves(joined, PLACES, {"a": 3}).drop(WHY, RAW)
    assert sorted(map(repr, again.collect())) == sorted(map(repr, halves.collect()))
    assert SPLIT not in again.columns


def test_values_of_any_type_are_cut_as_they_are(spark):
    """At the cut, behind it and in rows that were never split."""
    kinds = {
        "s": "string",
        "d": "decimal(38,10)",
        "l": "bigint",
        "f": "float",
        "t": "timestamp",
        "o": "boolean",
    }
    places = {c: 9 + n for n, c in enumerate(kinds)}
    big = "9999999999999999999999999999.9999999999"
    values = ("'x'", f"{big}BD", "9007199254740993L", "0.1F", "timestamp'2026-01-02 03:04:05.678901'", "true")
    row = ", ".join(f"cast({v} as {kinds[c]}) {c}" for c, v in zip(kinds, values, strict=True))
    splits = ", ".join(f"'{at},0,0,;20,0,0'" for at in (8, *places.values()))
    own = "0 `_Continuation-Position`, 0 `_ArrayIndex`, 0 `_Fragment`"
    df = spark.sql(f"select {own}, {row}, {SPLIT} from (select explode(array(null, {splits})) {SPLIT})")
    cut = cut_halves(df, places, {})
    assert {c: cut.schema[c].dataType.simpleString() for c in kinds} == kinds
    found = cut.selectExpr("`_Continuation-Position`", *(f"string({c})" for c in kinds)).collect()
    texts = ("x", big, "9007199254740993", "0.1", "2026-01-02 03:04:05.678901", "true")
    want = [(0, *texts)]
    for n, at in enumerate((8, *places.values())):
        want += [(at, *texts[:n], *[None] * (len(texts) - n)), (20, *[None] * n, *texts[n:])]
    assert [tuple(r) for r in found] == want


@pytest.mark.slow
def test_what_cannot_be_joined_has_its_reason(spark):
    def why(*rows):
        halves = table(spark, oe.CHANGE, rows, {"n": "int", "s": "string"})
        df = halves.withColumns({WHY: F.lit(None).cast("string"), RAW: F.lit("{}")})
        return [r[0] for r in join_halves(df, {"n": 9, "s": 10}, {}).select(WHY).collect()]

    assert why(image(1, 4, 9, 0, 1, s="x")) == ["half of a split record: the other half is missing"]
    three = [image(1, 4, 9 + n, 0, 0, n=n) for n in range(3)]
    assert why(*three) == ["split record of 3 rows"]
    assert why(image(1, 4, 8, 0, 1, n=1), image(1, 4, 10, 0, 0, n=2)) == ["split record cut inside n, a int"]
    assert why(image(1, 4, 9, 0, 1, s="x"), image(1, 4, 10, 0, 0)) == [
        "split record cut inside s, and one part of it is missing"
    ]
