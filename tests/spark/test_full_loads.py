"""`tailrace apply` of full loads: rows that come after a target was made stop it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailrace.errors import ApplyError
from tailrace.lake import delta as lake
from tailrace.operate import vendor_apply

pytestmark = pytest.mark.spark
CHANGE = "header__change_seq,header__change_oper,id,s\n20261102081500500000000000000000001,I,5,e\n"


def put(root: Path, name: str, text: str, began: str | None = None) -> None:
    """A load's file, with the DFM that names when it was begun."""
    file = root / "changes" / "dbo.g" / f"{name}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    if began:
        columns = [
            {"ordinal": k, "name": n, "type": "STRING", "primaryKeyPos": 1 - k}
            for k, n in enumerate(("id", "s"))
        ]
        info = {"name": name, "extension": "csv", "startWriteTimestamp": began}
        made = {"dfmVersion": "1.1", "fileInfo": info, "formatInfo": {"format": "delimited", "options": {"fieldDelimiter": ","}},
                "dataInfo": {"columns": columns}}  # fmt: skip
        file.with_suffix(".dfm").write_text(json.dumps(made))


def apply(spark: SparkSession, root: Path, **more: Any) -> None:
    given = {"key": "id"}
    vendor_apply.run(spark, str(root / "changes"), "qlik", given, str(root / "lake"), **more)


def rows(root: Path) -> list[str]:
    return sorted(r["s"] for r in lake.read(f"{root}/lake/dbo.g").to_pylist())


@pytest.mark.slow
def test_files_that_come_later_stop_it(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "LOAD00000001", "id,s\n1,a\n")
    (tmp_path / "changes" / "dbo.g__ct").mkdir()
    (tmp_path / "changes" / "dbo.g__ct" / "20261102-081500500.csv").write_text(CHANGE)
    for _ in range(2):
        apply(spark, tmp_path)
        assert rows(tmp_path) == ["a", "e"]
    put(tmp_path, "LOAD00000002", "id,s\n2,b\n3,c\n")
    for dry_run in (True, False):
        with pytest.raises(ApplyError, match=r"dbo\.g: LOAD00000002\.csv \(new\)") as told:
            apply(spark, tmp_path, dry_run=dry_run)
        assert "dbo.g" in str(told.value)
    assert rows(tmp_path) == ["a", "e"]
    # Files that are taken away are no such rows; a target that is made anew gets them all.
    for name in ("LOAD00000001", "LOAD00000002"):
        (tmp_path / "changes" / "dbo.g" / f"{name}.csv").rename(tmp_path / name)
    apply(spark, tmp_path)
    for name in ("LOAD00000001", "LOAD00000002"):
        (tmp_path / name).rename(tmp_path / "changes" / "dbo.g" / f"{name}.csv")
    (tmp_path / "lake" / "dbo.g").rename(tmp_path / "old")
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["a", "b", "c", "e"]


@pytest.mark.slow
def test_files_that_come_after_a_call_that_was_killed_stop_the_next_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: Any, **more: Any) -> None:
        raise RuntimeError("killed")

    put(tmp_path, "LOAD00000001", "id,s\n1,a\n")
    with monkeypatch.context() as patch:
        patch.setattr(vendor_apply, "_record_unnamed", dies)
        with pytest.raises(RuntimeError, match="killed"):
            apply(spark, tmp_path)
    assert rows(tmp_path) == ["a"]
    put(tmp_path, "LOAD00000002", "id,s\n2,b\n3,c\n")
    for _ in range(2):
        with pytest.raises(ApplyError, match=r"dbo\.g: LOAD00000002\.csv \(new\)"):
            apply(spark, tmp_path)


def test_a_new_load_of_as_many_rows_stops_it(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "LOAD00000001", "id,s\n1,a\n", "2026-11-01T10:00:00.000")
    apply(spark, tmp_path)
    put(tmp_path, "LOAD00000001", "id,s\n1,A\n", "2026-11-02T10:00:00.000")
    with pytest.raises(ApplyError, match=r"LOAD00000001\.csv \(changed\)"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["a"]


def test_the_first_load_of_a_target_that_has_changes_stops_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "changes" / "dbo.g__ct").mkdir(parents=True)
    (tmp_path / "changes" / "dbo.g__ct" / "20261102-081500500.csv").write_text(CHANGE)
    apply(spark, tmp_path)
    put(tmp_path, "LOAD00000001", "id,s\n1,a\n")
    with pytest.raises(ApplyError, match=r"LOAD00000001\.csv \(new\)"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["e"]


@pytest.mark.slow
def test_changes_whose_numbers_begin_anew_follow_a_load(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "LOAD00000001", "id,s\n1,a\n")
    apply(spark, tmp_path)
    put(tmp_path, "LOAD00000002", "id,s\n1,a\n")  # a copy, no row that came later
    (tmp_path / "changes" / "dbo.g__ct").mkdir()
    later = CHANGE + "20261102081500510000000000000000001,I,6,f\n"
    (tmp_path / "changes" / "dbo.g__ct" / "20261102-081500500.csv").write_text(later)
    for _ in range(2):
        apply(spark, tmp_path)
        assert rows(tmp_path) == ["a", "e", "f"]


def test_a_column_that_became_text_asks_for_a_new_load(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "changes" / "dbo.g__ct"
    folder.mkdir(parents=True)
    for number, value in ((1, 5), (2, "x")):
        seq = "20261102081500500" + f"{number:018}"
        made = {"header__change_seq": [seq], "header__change_oper": ["I"], "id": [number], "s": [value]}
        pq.write_table(pa.table(made), folder / "20261102-081500500.parquet")
        if number == 1:
            apply(spark, tmp_path)
    with pytest.raises(ApplyError, match="'s' changed from bigint to string") as told:
        apply(spark, tmp_path)
    assert told.value.hint is not None and "apply a full load with the new layout" in told.value.hint
