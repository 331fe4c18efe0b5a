"""Parquet files as pandas and Arrow write them: times in nanoseconds, files of different units in one folder."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tailrace.errors import FormatError
from tailrace.formats import convert
from tailrace.formats.base import FINER, ROW
from tailrace.model.change import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
AT = ["2026-01-01 12:00:00.123456789", "1969-12-31 23:59:59.999999999", None, "2026-01-01 12:00:00.123456"]
MICROS = [
    datetime(2026, 1, 1, 12, 0, 0, 123456),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    None,
    datetime(2026, 1, 1, 12, 0, 0, 123456),
]


def rows(start: int = 1) -> pd.DataFrame:
    """Four inserts; `at` is a local time, `header__timestamp` and `z` are instants; one list."""
    at = pd.Series(pd.to_datetime(AT, format="ISO8601"))
    return pd.DataFrame(
        {
            "header__change_seq": [f"2026010112000000{n:019d}" for n in range(start, start + 4)],
            "header__change_oper": "I",
            "header__timestamp": at.dt.tz_localize("UTC"),
            "id": range(start, start + 4),
            "at": at,
            "z": at.dt.tz_localize("UTC"),
        }
    )


def put(folder: Path, name: str, frame: pd.DataFrame, unit: str = "ns") -> Path:
    """The file; with a list of times, too."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if unit == "us":
        for at, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                kind = pa.timestamp("us", field.type.tz)
                cut = pc.floor_temporal(table[field.name], unit="microsecond").cast(kind)
                table = table.set_column(at, field.name, cut)
    ends = pa.array(range(table.num_rows + 1), pa.int32())
    table = table.append_column("many", pa.ListArray.from_arrays(ends, table["at"].combine_chunks()))
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name)
    return folder / name


@pytest.mark.slow
def test_nanoseconds_are_cut_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in" / "shop.item__ct", "part-0.parquet", rows())
    side = convert.side("qlik", str(tmp_path / "in"), {"key": "id"})
    out = convert.side("tailrace", str(tmp_path / "out"), {})
    report = convert.convert(spark, side, out)
    (table,) = report.tables.values()
    assert (table.rows, table.bad, table.lost) == (4, 0, {convert.FRACTION: 2})
    df = spark.read.parquet(str(next((tmp_path / "out").glob("*__ct"))))
    kinds = {f.name: f.dataType.simpleString() for f in df.schema}
    assert [kinds[c] for c in ("at", "z", "many", PREFIX + "timestamp")] == [
        "timestamp_ntz", "timestamp", "array<timestamp_ntz>", "timestamp",
    ]  # fmt: skip
    texts = ["at", "cast(z as timestamp_ntz) z", f"cast({PREFIX}timestamp as timestamp_ntz) h"]
    found = df.orderBy("id").selectExpr(*texts).collect()
    assert [tuple(r) for r in found] == [(t, t, t) for t in MICROS]
    with pytest.raises(FormatError, match=convert.FRACTION):
        convert.convert(spark, side, convert.side("tailrace", str(tmp_path / "no"), {}), strict=True)


def test_files_of_different_units_in_one_table(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "in" / "shop.item__ct"
    put(place, "part-0.parquet", rows())
    put(place, "part-1.parquet", rows(5).assign(more="x"), unit="us")
    (ct,) = convert.read(
        spark, convert.side("tailrace", str(tmp_path / "in"), {"key": "id"})
    ).changes.values()
    assert ct.columns == ["id", "at", "z", "many", "more"]
    found = ct.df.orderBy("id").select("at", "more", FINER, ROW).collect()
    assert [r[0] for r in found] == MICROS * 2
    assert [r[1] for r in found] == [None] * 4 + ["x"] * 4
    assert [bool(r[2]) for r in found] == [True, True, False, False] + [False] * 4
    assert [r[3] for r in found] == [1, 2, 3, 4] * 2


def test_what_is_no_parquet(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "shop.item__ct.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(FormatError, match="cannot be read"):
        convert.read(spark, convert.side("tailrace", str(tmp_path), {}))


UNREAD = {
    "decimal256(39, 10)": pa.array([Decimal("1.5")], pa.decimal256(39, 10)),
    "list<element: decimal256(60, 2)>": pa.array([[Decimal("1.5")]], pa.list_(pa.decimal256(60, 2))),
    "struct<a: time64[us]>": pa.array([{"a": time(1)}]),
    "time32[ms]": pa.array([time(1)], pa.time32("ms")),
    "time64[ns]": pa.array([time(1)], pa.time64("ns")),
    "halffloat": pa.array([1.5], pa.float16()),
    "extension<arrow.uuid>": pa.array([b"0123456789abcdef"], pa.uuid()),
}
READ = {
    "decimal(38,10)": pa.array([Decimal("1.5")], pa.decimal256(38, 10)),
    "decimal(20,0)": pa.array([(1 << 64) - 1], pa.uint64()),
    "bigint": pa.array([timedelta(1)], pa.duration("us")),
    "array<int>": pa.array([[1]], pa.large_list(pa.int32())),
    "string": pa.array(["a"]).dictionary_encode(),
    "binary": pa.array([b"ab"], pa.binary(2)),
    "int": pa.nulls(1),
}


def with_columns(folder: Path, **more: pa.Array) -> Path:
    file = put(folder / "s.t__ct", "20260301-080000000.parquet", rows().head(1))
    table = pq.read_table(file)
    for name, values in more.items():
        table = table.append_column(name, values)
    pq.write_table(table, file)
    return file


@pytest.mark.parametrize(("kind", "name"), list(zip(UNREAD, ["tailrace", "qlik"] * 4, strict=False)))
def test_a_type_that_spark_does_not_read(spark: SparkSession, tmp_path: Path, kind: str, name: str) -> None:
    file = with_columns(tmp_path, v=UNREAD[kind])
    with pytest.raises(FormatError) as told:
        convert.read(spark, convert.side(name, str(tmp_path), {"key": "id"}))
    assert told.value.what == f"the column v is of the type {kind}, which Spark does not read"
    assert told.value.where == str(file)


def test_types_that_spark_reads_as_others(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"v{n}" for n in range(len(READ))]
    with_columns(tmp_path, **dict(zip(names, READ.values(), strict=True)))
    (ct,) = convert.read(spark, convert.side("tailrace", str(tmp_path), {"key": "id"})).changes.values()
    assert [ct.df.schema[name].dataType.simpleString() for name in names] == list(READ)
    assert len(ct.df.select(*names).collect()) == 1
