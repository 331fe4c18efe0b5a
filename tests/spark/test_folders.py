"""Tables in folders of folders, read through Spark: each row once, with its file and number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tailrace.errors import FormatError
from tailrace.formats import convert, file_reader
from tailrace.formats.base import ADDED_COLUMNS, FILE, ROW
from tailrace.formats.openedge import FORMAT as OPENEDGE
from tailrace.testing.changes import comparable_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples"


def put(file: Path, first: int, **more: str) -> None:
    """Two rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table({"id": [first, first + 1], **{n: [v, v] for n, v in more.items()}})
    if file.suffix == ".parquet":
        pq.write_table(rows, file)
    elif file.suffix == ".csv":
        pa.csv.write_csv(rows, file)
    else:
        rows.to_pandas().to_json(file, orient="records", lines=True)


# Spark would make a column of the first folder's name, in each kind of file by a reader of its own.
@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        *((kind, "dt=2026-03-02") for kind in ("parquet", "csv", "json")),
        ("csv", "month2"), ("parquet", "_hidden"),
    ],
)  # fmt: skip
def test_all_files_of_a_table_are_read(spark: SparkSession, tmp_path: Path, kind: str, inside: str) -> None:
    put(tmp_path / "t" / f"a[1].{kind}", 1)
    put(tmp_path / "t" / inside / f"b.{kind}", 3)
    (df,) = file_reader.load(spark, str(tmp_path)).values()
    assert [c for c in df.columns if c not in ADDED_COLUMNS] == ["id"]
    found = [
        (int(n), Path(unquote(f)).name, at)
        for n, f, at in file_reader.count_rows(df, df).select("id", FILE, ROW).collect()
    ]
    first = {f"a[1].{kind}": 1} | ({} if inside == "_hidden" else {f"b.{kind}": 3})
    assert sorted(found) == [(n + k, f, k + 1) for f, n in first.items() for k in (0, 1)]


def test_files_of_several_tables_are_not_mixed(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "lake" / "a" / "1.parquet", 1)
    put(tmp_path / "lake" / "b" / "1.parquet", 1, name="x")
    with pytest.raises(FormatError, match=r"b/1\.parquet has other columns than a/1\.parquet"):
        file_reader.load(spark, str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / "lake" / name).rename(tmp_path / "lake" / f"dt={name}")
    assert file_reader.load(spark, str(tmp_path))["lake"].columns[:2] == ["id", "name"]


def keylog(spark: SparkSession, path: Path) -> list[str]:
    (ct,) = convert.read(spark, convert.side("sqdr", str(path), {})).changes.values()
    return [str(row) for row in comparable_rows(ct)]


@pytest.mark.slow
def test_a_key_log_in_two_folders_and_its_columns_in_a_loose_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = EXAMPLES / "sqdr" / "tables"
    whole = spark.read.csv(str(tables / "ir_keylog.csv"), header=True, multiLine=True, escape='"').toPandas()
    texts = pa.schema([(n, pa.string()) for n in whole.columns])
    for part, name in ((whole[:3], "a.parquet"), (whole[3:], "dt=2026-03-02/b.parquet")):
        file = tmp_path / "sqdr1" / "ir_keylog" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pandas(part, texts, preserve_index=False), file)
    (tmp_path / "sqdr1" / "tailrace_columns.csv").write_text((tables / "tailrace_columns.csv").read_text())
    assert keylog(spark, tmp_path / "sqdr1") == keylog(spark, tables)


def test_what_openedges_hidden_folders_have_besides_is_told(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "_Cdc-Change-Tracking" / "a.csv", 1)
    (tmp_path / "_Cdc-Change-Tracking" / "notes.txt").touch()
    put(tmp_path / "PUB.CDC_item.csv", 1)
    assert OPENEDGE.load is not None
    found = OPENEDGE.load(spark, str(tmp_path), OPENEDGE.options())
    assert set(found) == {"_Cdc-Change-Tracking", "PUB.CDC_item"}
    assert file_reader.notes_of(found) == ["_Cdc-Change-Tracking/notes.txt is not a table: not read"]
