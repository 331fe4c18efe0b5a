"""A column that has bytes in one file and text in another: no text that is not UTF-8, no value changed unseen."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace import formats
from tailrace.errors import FormatError
from tailrace.formats import convert
from tailrace.operate import vendor_apply

from .literal_tables import rows_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
OCTETS = [b"a", b"\xff\x00", b"", None, b"z"]
"""The first and the last are UTF-8: the smallest and the largest value say nothing of those between."""
TEXTS = ["A", "ff", "", None, "Z"]


def put(file: Path, start: int, v: pa.Array) -> None:
    """Inserts from number `start` on, in Qlik's names."""
    file.parent.mkdir(parents=True, exist_ok=True)
    ids = range(start, start + len(v))
    heads = {
        "header__change_seq": [f"2026030108000000{n:019d}" for n in ids],
        "header__change_oper": ["I"] * len(v),
    }
    pq.write_table(pa.table({**heads, "id": pa.array(ids, pa.int32()), "v": v}), file)


def values(spark: SparkSession, path: Path, name: str = "qlik", **more: str) -> list[str | None]:
    (ct,) = convert.read(spark, convert.side(name, str(path), {"key": "id", **more})).changes.values()
    assert ct.df.schema["v"].dataType.simpleString() == "string"
    return [row.v for row in ct.df.orderBy("id").select("v").collect()]


@pytest.mark.parametrize(("newest", "written"), [("text", "hex"), ("bytes", "base64")])
def test_qlik_files_of_both_kinds(spark: SparkSession, tmp_path: Path, newest: str, written: str) -> None:
    place = tmp_path / "in" / "s.t__ct"
    first = 1 if newest == "text" else 6
    put(place / f"2026030{first}-080000000.parquet", 1, pa.array(OCTETS, pa.binary()))
    put(place / "20260305-080000000.parquet", 6, pa.array(TEXTS))
    encoded = (lambda b: b.hex().upper()) if written == "hex" else (lambda b: base64.b64encode(b).decode())
    wanted = [None if b is None else encoded(b) for b in OCTETS] + TEXTS
    assert values(spark, tmp_path / "in", binary_text=written) == wanted


@pytest.mark.slow
def test_they_are_applied(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "in" / "s.t__ct"
    put(place / "20260301-080000000.parquet", 1, pa.array(OCTETS, pa.binary()))
    put(place / "20260305-080000000.parquet", 6, pa.array(TEXTS))
    vendor_apply.run(spark, str(tmp_path / "in"), "qlik", {"key": "id"}, str(tmp_path / "out"))
    rows = rows_at(spark, str(tmp_path / "out" / "s.t")).orderBy("id")
    assert [row.v for row in rows.collect()] == ["61", "FF00", "", None, "7A", *TEXTS]


def test_qlik_full_load_of_bytes_and_changes_of_text(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "s.t").mkdir()
    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.int32()), "v": pa.array([b"a", b"\xff"], pa.binary())}),
        tmp_path / "s.t" / "LOAD00000001.parquet",
    )
    put(tmp_path / "s.t__ct" / "20260305-080000000.parquet", 6, pa.array(TEXTS))
    assert values(spark, tmp_path) == ["61", "FF", *TEXTS]


def test_qlik_delta_and_dfm(spark: SparkSession, tmp_path: Path) -> None:
    """Text files whose DFM names BYTES, too."""
    place = tmp_path / "s.t__ct"
    place.mkdir()
    names = ["header__change_seq", "header__change_oper", "id", "v"]
    for stem, at, kind, value in (
        ("20260301-080000000", 1, "BYTES", "fF00"),
        ("20260302-080000000", 2, "STRING", "fF00"),
    ):
        (place / f"{stem}.csv").write_text(f"{','.join(names)}\n2026030108000000{at:019d},I,{at},{value}\n")
        kinds = ["STRING", "STRING", "INT4", kind]
        columns = [
            {"ordinal": n, "name": c, "type": t} for n, (c, t) in enumerate(zip(names, kinds, strict=True), 1)
        ]
        made = {"fileInfo": {"name": stem, "extension": "csv"}, "dataInfo": {"columns": columns}}
        (place / f"{stem}.dfm").write_text(json.dumps(made))
    assert values(spark, tmp_path) == ["FF00", "fF00"]


@pytest.mark.parametrize("nanoseconds", [False, True])
def test_files_of_other_formats_are_refused(spark: SparkSession, tmp_path: Path, nanoseconds: bool) -> None:
    """Nothing of theirs says how bytes are written as text."""
    place = tmp_path / "s.t__ct"
    put(place / "part-0.parquet", 1, pa.array(OCTETS, pa.binary()))
    put(place / "part-1.parquet", 6, pa.array(TEXTS))
    if nanoseconds:
        rows = pq.read_table(place / "part-1.parquet")
        pq.write_table(
            rows.append_column("at", pa.array([0] * 5, pa.timestamp("ns"))), place / "part-1.parquet"
        )
    with pytest.raises(
        FormatError, match=r"the column v is of the type string, in part-0\.parquet binary"
    ) as told:
        values(spark, tmp_path, "tailrace")
    assert str(place / "part-1.parquet") in str(told.value)


def test_bytes_of_a_column_that_is_declared_as_text(spark: SparkSession, tmp_path: Path) -> None:
    """Some writers leave out that a column is text. What is not UTF-8 is a bad row."""
    place = tmp_path / "s.t__ct"
    put(place / "part-0.parquet", 1, pa.array([*OCTETS, "ü".encode()], pa.binary()))
    side = convert.side("tailrace", str(tmp_path), {"key": "id", "columns": "v string"})
    (ct,) = convert.read(spark, side).changes.values()
    found = ct.df.orderBy("id").select("v", formats.base.WHY).collect()
    assert [tuple(row) for row in found] == [
        ("a", None), (None, "v is not valid as string"), ("", None), (None, None), ("z", None), ("ü", None),
    ]  # fmt: skip


def test_text_is_text_however_arrow_holds_it(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "s.t__ct"
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    for n, kind in enumerate(kinds):
        put(place / f"part-{n}.parquet", 5 * n + 1, pa.array(TEXTS).cast(kind))
    assert values(spark, tmp_path, "tailrace") == TEXTS * len(kinds)


@pytest.mark.parametrize("kind", [pa.int64(), pa.null()])
def test_files_that_spark_cannot_merge_name_the_column(
    spark: SparkSession, tmp_path: Path, kind: pa.DataType
) -> None:
    put(tmp_path / "s.t__ct" / "part-0.parquet", 1, pa.nulls(2, kind))
    put(tmp_path / "s.t__ct" / "part-1.parquet", 3, pa.array([1.5, 2.5]))
    with pytest.raises(FormatError, match=f"the column v is of the type double, in part-0.parquet {kind}"):
        values(spark, tmp_path, "tailrace")
