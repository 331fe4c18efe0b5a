"""A part's statistics let every reader find files by range, and never hide a row."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from tailrace.lake import delta as lake

pytestmark = pytest.mark.unit

UTC = dt.timezone.utc
ROWS: dict[str, pa.Array] = {
    "i": pa.array([1, None], pa.int32()),
    "s": pa.array(["a" * 100, "é"]),
    "d": pa.array([decimal.Decimal("1.25"), decimal.Decimal("-99999999999999999999.50")], pa.decimal128(30, 2)),
    "z": pa.array([dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)],
                  pa.timestamp("us", "UTC")),
    "t": pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)], pa.timestamp("us")),
    "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "f": pa.array([1.5, float("nan")]),
    "b": pa.array([b"x", None]),
    "flag": pa.array([True, None]),
    "nothing": pa.array([None, None], pa.string()),
}  # fmt: skip


def stats(folder: Path) -> dict[str, Any]:
    lake.append(str(folder), pa.table(ROWS))
    commit = (folder / "_delta_log" / f"{1:020d}.json").read_text()
    found: dict[str, Any] = json.loads(
        next(json.loads(c)["add"]["stats"] for c in commit.splitlines() if '"add"' in c)
    )
    return found


def test_statistics_are_what_delta_writes(tmp_path: Path) -> None:
    found = stats(tmp_path / "t")
    assert found["numRecords"] == 2
    assert found["nullCount"] == {
        "i": 1,
        "s": 0,
        "d": 0,
        "z": 0,
        "t": 0,
        "day": 0,
        "f": 0,
        "b": 1,
        "flag": 1,
        "nothing": 2,
    }
    assert found["minValues"]["z"] == "0001-01-01T00:00:00.000000Z"
    assert found["maxValues"]["t"] == "9999-12-31T00:00:00.000000"
    assert found["minValues"]["s"] == "a" * 64 and found["maxValues"]["day"] == "9999-12-31"
    assert "b" not in found["minValues"] and "nothing" not in found["minValues"]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (ds.field("i") == 1, 1),
        (ds.field("s") == "é", 1),
        (ds.field("s") == "a" * 100, 1),
        (ds.field("d") == decimal.Decimal("1.25"), 1),
        (ds.field("z") > dt.datetime(2000, 1, 1, tzinfo=UTC), 1),
        (ds.field("day") == dt.date(1, 1, 1), 1),
        (ds.field("b") == b"x", 1),
        (ds.field("flag"), 1),
        (ds.field("i") == 2, 0),
    ],
)
def test_a_filter_finds_every_row(tmp_path: Path, where: ds.Expression, rows: int) -> None:
    lake.append(str(tmp_path / "t"), pa.table(ROWS))
    assert DeltaTable(tmp_path / "t").to_pyarrow_dataset().to_table(filter=where).num_rows == rows


def test_decimals_keep_all_digits(tmp_path: Path) -> None:
    stats(tmp_path / "t")
    raw = (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").read_text()
    assert "-99999999999999999999.50" in raw
