"""Two sides of a table, compared by this process: what is equal, what differs, what of it is shown."""

from __future__ import annotations

import datetime as dt
import tempfile
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailrace.model.change import Column, Relation
from tailrace.validate.compare import Comparison, TablePair, TableResult
from tailrace.validate.file_rows import FileRows
from tailrace.wire.row_hashes import hashes

from .file_rows import Rows, rows_in

pytestmark = pytest.mark.unit
KEYED = Relation(1, "s", "t", "d", (Column("id", 1, "int", "int4", "int", key=True),))
BAG = Relation(1, "s", "t", "f", (Column("id", 1, "int", "int4", "int"),))


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return partial(rows_in, tmp_path)


def compared(left: FileRows, right: FileRows, relation: Relation = KEYED, buckets: int = 4) -> TableResult:
    with tempfile.TemporaryDirectory() as scratch:
        pair = TablePair("s.t", tuple(relation.key), left, right)
        ((_, found),) = Comparison(None, scratch).compare([pair], buckets, 2)
    assert isinstance(found, TableResult)
    return found


EVERY = {
    "n": pa.array([1, None], pa.int16()),
    "b": pa.array([True, None]),
    "f": pa.array([float("nan"), 0.0], pa.float32()),
    "x": pa.array([-0.0, None], pa.float64()),
    "d": pa.array([Decimal("-12.50"), None], pa.decimal128(12, 2)),
    "s": pa.array(["", "größer als acht"]),
    "y": pa.array([b"\0", None]),
    "day": pa.array([dt.date(1, 1, 1), None]),
    "at": pa.array([dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us")),
    "utc": pa.array([0, None], pa.timestamp("us", "UTC")),
}
OTHERS = {
    "n": pa.array([1, None], pa.int64()),
    "x": pa.array([0.0, None], pa.float64()),
    "d": pa.array([Decimal("-12.5"), None], pa.decimal128(5, 1)),
    "s": pa.array(["", "größer als acht"], pa.large_string()),
}


def test_values_of_every_type_are_equal_by_what_they_mean(rows: Rows) -> None:
    ids = pa.array([1, 2])
    found = compared(rows(id=ids, **EVERY), rows(id=ids, **(EVERY | OTHERS)))
    assert (found.equal, found.source_rows, found.target_rows) == (True, 2, 2)


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("n", pa.array([0, None], pa.int16())),
        ("b", pa.array([True, False])),
        ("f", pa.array([None, 0.0], pa.float32())),
        ("d", pa.array([Decimal("-12.51"), None], pa.decimal128(12, 2))),
        ("s", pa.array([None, "größer als acht"])),
        ("s", pa.array(["\0", "größer als acht"])),
        ("s", pa.array(["", "größer als ocht"])),
        ("y", pa.array([b"", None])),
        ("at", pa.array([dt.datetime(9999, 12, 31, 23, 59, 59, 999998), None], pa.timestamp("us"))),
    ],
)
def test_one_value_that_is_another_is_found(rows: Rows, column: str, other: pa.Array) -> None:
    ids = pa.array([1, 2])
    found = compared(rows(id=ids, **EVERY), rows(id=ids, **(EVERY | {column: other})))
    assert (found.equal, found.differing_rows) == (False, 2)


def test_rows_on_one_side_only_are_counted_and_the_first_by_key_are_shown(rows: Rows) -> None:
    left = rows(id=[1, 2, 3, 4], v=["a", "b", "c", "d"])
    found = compared(left, rows(id=[9, 4, 3, 1], v=["z", "d", "other", "a"]))
    assert (found.equal, found.differing_rows) == (False, 4)
    assert found.samples == [
        {"side": "source", "id": "2", "v": "b"},
        {"side": "source", "id": "3", "v": "c"},
    ]


def test_large_values_of_samples_are_shortened_and_still_differ(rows: Rows) -> None:
    large = "x" * 1_000_000
    found = compared(rows(id=[1], v=[large]), rows(id=[1], v=[large[:-1] + "y"]))
    left, right = (sample["v"] for sample in found.samples)
    assert left.startswith("x" * 100 + "... (1,000,000 characters, SHA-256 ")
    assert len(left) < 200
    assert left != right


def test_copies_count_where_there_is_no_key(rows: Rows) -> None:
    found = compared(rows(id=[7, 7, 7, 8]), rows(id=[7, 8, 8]), BAG)
    assert (found.source_rows, found.target_rows, found.differing_rows) == (4, 3, 3)
    assert found.samples == [{"side": "source", "id": "7"}, {"side": "target", "id": "8"}]
    assert compared(rows(id=[7, 8, 7]), rows(id=[7, 7, 8]), BAG).equal


def test_columns_that_trade_their_values_are_no_equal_rows(rows: Rows) -> None:
    assert not compared(rows(id=[1], a=["x"], b=["y"]), rows(id=[1], a=["y"], b=["x"])).equal
    assert not compared(rows(id=[1], a=["xy"], b=[""]), rows(id=[1], a=["x"], b=["y"])).equal


def test_columns_that_differ_are_said(rows: Rows) -> None:
    found = compared(rows(id=[1], a=["1"], b=[1]), rows(id=[1], a=[1], c=[1]))
    assert (found.equal, found.differing_rows) == (False, 0)
    said = "only in the source: b; only in the target: c; a is string in the source and int64 in the target"
    assert found.columns == said


def test_names_in_the_source_that_the_target_does_not_know(rows: Rows) -> None:
    left = replace(rows(ID=[1, 2], old=["a", "b"]), columns={"id": pc.field("ID"), "new": pc.field("old")})
    assert compared(left, rows(new=["b", "a"], id=[2, 1])).equal


def test_an_empty_side(rows: Rows) -> None:
    none = rows(id=pa.array([], pa.int64()))
    assert compared(none, none).equal
    assert compared(rows(id=[1]), none).samples == [{"side": "source", "id": "1"}]


def test_a_slice_hashes_as_the_whole() -> None:
    columns = [one.take(pa.array([0, 1] * 500)) for one in EVERY.values()]
    whole = hashes(columns)
    assert np.array_equal(hashes([c.slice(501, 90) for c in columns]), whole[501:591])
    assert len(np.unique(whole)) == 2


def test_texts_of_many_lengths_have_hashes_of_their_own() -> None:
    texts = [c * n for n in range(40) for c in ("a", "b", "\0")]
    assert len(np.unique(hashes([pa.array(texts)]))) == len(set(texts))
    large = pa.array([Decimal(n) for n in (0, 1, -1, 10**18, 10**37, -(10**37))], pa.decimal128(38, 0))
    assert len(np.unique(hashes([large]))) == 6


def test_arrays_that_differ_are_shown(rows: Rows) -> None:
    kind = pa.list_(pa.field("element", pa.int32()))
    left, right = (rows(id=pa.array([1, 2]), a=pa.array([[1], value], kind)) for value in ([2], None))
    found = compared(left, right)
    assert found.differing_rows == 2
    assert sorted((s["side"], s["a"]) for s in found.samples) == [("source", "[2]"), ("target", None)]
