"""Qlik's files as they are written, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from tailrace.errors import ConfigError, FormatError
from tailrace.formats.qlik import file_writer
from tailrace.formats.qlik.options import QlikOptions

from .test_qlik_files import put

pytestmark = pytest.mark.unit

LOCAL = pyarrow.fs.LocalFileSystem()


def part(root: Path, folder: str, name: str = "part-0.csv") -> str:
    """A part that Spark wrote, and its path as `_metadata.file_path` says it, decoded once."""
    put(root / folder, name, "x\n")
    return f"{folder}/{name}"


@pytest.mark.parametrize(
    ("folder", "partition"),
    [
        ("20260101T000000_20260101T010000", "20260101T000000_20260101T010000"),
        ("a%3Ab", "a%3Ab"),
        ("a%2Fb%3D1", "a%2Fb%3D1"),
        ("50%25", "50%25"),
        ("a b", "a b"),
        ("..", "partition_name=.."),
        ("_x", "partition_name=_x"),
        ("__HIVE_DEFAULT_PARTITION__", ""),
    ],
)
def test_parts_of_partitions_with_any_name_are_kept(tmp_path: Path, folder: str, partition: str) -> None:
    path = part(tmp_path, f"{file_writer.PARTITION}={folder}")
    other = part(tmp_path, f"{file_writer.PARTITION}=20260101T010000_20260101T020000")
    count = {"rows": 2, "first": None, "last": None}
    made = file_writer._parts(str(tmp_path), {path: count, other: count})
    assert {(p.partition, p.rows) for p in made} == {(partition, 2), ("20260101T010000_20260101T020000", 2)}


def test_rows_of_no_part_are_an_error(tmp_path: Path) -> None:
    path = part(tmp_path, "rows")
    part(tmp_path, "rows", "part-1.csv")
    count = {"rows": 2, "first": None, "last": None}
    assert [p.rows for p in file_writer._parts(str(tmp_path), {path: count})] == [2]
    with pytest.raises(FormatError, match=r"rows/part-9\.csv"):
        file_writer._parts(str(tmp_path), {path: count, "rows/part-9.csv": count})


def test_reference_files_are_numbered(tmp_path: Path) -> None:
    options = QlikOptions(reference="R", start="keep")
    for n in (1, 2, 3):
        file_writer._write_reference(LOCAL, str(tmp_path), [f"dbo.item,dbo.item/LOAD0000000{n}.csv"], options)
    assert {f.name: f.read_text().rpartition("/")[2] for f in tmp_path.iterdir()} == {
        f"R0000000{n}.csv": f"LOAD0000000{n}.csv\n" for n in (1, 2, 3)
    }


@pytest.mark.parametrize("start", ["keep", "truncate"])
def test_a_reference_that_is_written_is_not_read(tmp_path: Path, start: Any) -> None:
    put(tmp_path, "LOAD00000001.csv", "id\n1\n")
    options = QlikOptions(reference="S3Target", ddl="ignore", start=start)
    with pytest.raises(ConfigError, match="its newest file has no DFM"):  # it was found
        file_writer._in_existing_layout(None, str(tmp_path), LOCAL, options)  # type: ignore[arg-type]
