"""`tailrace apply` of changes that come after their target has passed their place: they stop it; and of those
that come again: they are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.errors import ApplyError, FormatError
from tailrace.lake import delta as lake
from tailrace.operate import vendor_apply

pytestmark = pytest.mark.spark
HEAD = "header__change_seq,header__change_oper,id,s\n"
FIRST, LATE, LAST = (f"2026110208150050000000000000000000{n},I,{n},{n}\n" for n in (1, 2, 3))
RULES = vendor_apply.ruling("upsert", {}, None, None, "all")


def put(root: Path, name: str, *lines: str) -> None:
    file = root / "changes" / "dbo.g__ct" / f"{name}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(HEAD + "".join(lines))


def apply(spark: SparkSession, root: Path, **more: Any) -> dict[str, Any]:
    given = {"key": "id"}
    return vendor_apply.run(spark, str(root / "changes"), "qlik", given, str(root / "lake"), **more)


def rows(root: Path) -> list[str]:
    return sorted(r["s"] for r in lake.read(f"{root}/lake/dbo.g").to_pylist())


@pytest.mark.parametrize(
    ("ruling", "timed"), [(None, True), (RULES, True), (None, False)], ids=["plain", "rules", "without times"]
)
def test_a_file_that_comes_late_stops_it(
    spark: SparkSession, tmp_path: Path, ruling: Any, timed: bool
) -> None:
    """Sequences of OpenEdge, SQDR and solidDB have no times: they begin with zeros."""
    first, late, last = (line if timed else "0" * 16 + line[16:] for line in (FIRST, LATE, LAST))
    put(tmp_path, "20261102-081500500", first, last)
    for _ in range(2):
        apply(spark, tmp_path, ruling=ruling)
    put(tmp_path, "20261102-081500501", late)
    for dry_run in (True, False):
        with pytest.raises(ApplyError, match=r"dbo\.g: 1 change came late"):
            apply(spark, tmp_path, ruling=ruling, dry_run=dry_run)
    assert rows(tmp_path) == ["1", "3"]
    done = apply(spark, tmp_path, ruling=ruling, skip_late=True)
    assert "dbo.g: 1 change came late: skipped" in done["notes"]
    assert rows(tmp_path) == ["1", "3"]
    done = apply(spark, tmp_path, ruling=ruling)  # it is known by now
    assert not [n for n in done["notes"] if "late" in n]
    (tmp_path / "lake" / "dbo.g").rename(tmp_path / "old")  # a target made anew gets it
    apply(spark, tmp_path, ruling=ruling)
    assert rows(tmp_path) == ["1", "2", "3"]


def test_a_row_that_was_bad_and_is_repaired_comes_late(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "20261102-081500500", FIRST, LATE.replace(",I,", ",X,"), LAST)
    apply(spark, tmp_path, fail=False)
    assert rows(tmp_path) == ["1", "3"]
    put(tmp_path, "20261102-081500500", FIRST, LATE, LAST)
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)


def test_files_that_are_taken_away_and_put_back_are_known(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "20261102-081500500", FIRST)
    put(tmp_path, "20261102-081500501", LATE)
    apply(spark, tmp_path)
    away = tmp_path / "changes" / "dbo.g__ct" / "20261102-081500500.csv"
    away.rename(tmp_path / "away")
    apply(spark, tmp_path)
    (tmp_path / "away").rename(away)
    put(tmp_path, "20261102-081500502", LAST)
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["1", "2", "3"]


def test_a_stop_is_no_late_change(spark: SparkSession, tmp_path: Path) -> None:
    stops = vendor_apply.ruling("strict", {"insert_exists": "stop"}, None, None, "all")
    again = LATE.replace(",2,2", ",1,2")
    put(tmp_path, "20261102-081500500", FIRST, again, LAST)
    with pytest.raises(ApplyError, match="insert_exists"):
        apply(spark, tmp_path, ruling=stops)
    assert rows(tmp_path) == ["1"]
    goes_on = vendor_apply.ruling("strict", {"insert_exists": "log"}, None, None, "all")
    apply(spark, tmp_path, ruling=goes_on)
    assert rows(tmp_path) == ["1", "3"]


def test_where_numbers_begin_anew_times_tell(spark: SparkSession, tmp_path: Path) -> None:
    first, late, last, more = (f"20261102081500{n}{1:019d},I,{n},{n}\n" for n in (50, 60, 70, 80))
    put(tmp_path, "20261102-081500500", first, last)
    apply(spark, tmp_path)
    put(tmp_path, "20261102-081500501", late)
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)
    (tmp_path / "changes" / "dbo.g__ct" / "20261102-081500501.csv").unlink()
    put(tmp_path, "20261102-081500502", more)
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["50", "70", "80"]


@pytest.mark.parametrize("before", [True, False], ids=["after it was applied", "before anything was applied"])
def test_a_file_that_is_delivered_again_is_read_once(
    spark: SparkSession, tmp_path: Path, before: bool
) -> None:
    put(tmp_path, "20261102-081500500", FIRST, LATE)
    if before:
        apply(spark, tmp_path)
    put(tmp_path, "20261102-081500501", FIRST, LATE)
    put(tmp_path, "20261102-081500502", LAST)
    done = apply(spark, tmp_path)
    said = "dbo.g: 2 rows came again, equal in every column; each is read once"
    assert (done["bad"], done["rejects"], said in done["notes"]) == (0, None, True)
    assert rows(tmp_path) == ["1", "2", "3"]


def test_of_rows_that_differ_for_one_change_none_is_right(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "20261102-081500500", FIRST, LATE, LATE, LAST)
    put(tmp_path, "20261102-081500501", LATE.replace(",2,2", ",2,"))
    done = apply(spark, tmp_path, fail=False)
    assert done["bad"] == 3
    assert rows(tmp_path) == ["1", "3"]


@pytest.mark.parametrize(
    "seq", ["0" * 15 + "1" + "0" * 18 + "7", "0" * 16 + "9" * 19], ids=["times", "numbers"]
)
def test_a_sequence_that_progress_has_no_number_for_is_refused(
    spark: SparkSession, tmp_path: Path, seq: str
) -> None:
    """Targets keep the last 19 digits of it, in 63 bits."""
    put(tmp_path, "20261102-081500500", f"{'0' * 34}1,I,1,1\n", f"{seq},I,2,2\n")
    with pytest.raises(FormatError, match=f"sequence {seq} is beyond the 63 bits"):
        apply(spark, tmp_path)
    assert not (tmp_path / "lake" / "dbo.g").exists()


def test_a_sequence_without_a_time_comes_late_where_times_tell(spark: SparkSession, tmp_path: Path) -> None:
    """It precedes all others, whatever its number."""
    put(tmp_path, "20261102-081500500", *(f"20261102081500{n}{1:019d},I,{n},{n}\n" for n in (50, 60)))
    apply(spark, tmp_path)
    put(tmp_path, "20261102-081500501", f"{9:035d},I,9,9\n")
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["50", "60"]
