"""`tailrace apply` of changes below the progress of their target, which stop it, and of repeated rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailrace.apply.vendor.sequence_stats import NUMBER_LIMIT
from tailrace.errors import ApplyError, FormatError
from tailrace.lake import delta as lake
from tailrace.operate import vendor_apply

pytestmark = pytest.mark.spark
HEAD = "header__change_seq,header__change_oper,id,s\n"
FIRST, LATE, LAST = (f"2026110208150050000000000000000000{n},I,{n},{n}\n" for n in (1, 2, 3))
RULES = vendor_apply.ruling("upsert", {}, None, None, "all")


def put(root: Path, name: str, *lines: str, table: str = "dbo.g") -> None:
    file = root / "changes" / f"{table}__ct" / f"{name}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(HEAD + "".join(lines))


def apply(spark: SparkSession, root: Path, **more: Any) -> dict[str, Any]:
    given = {"key": "id"}
    return vendor_apply.run(spark, str(root / "changes"), "qlik", given, str(root / "lake"), **more)


def rows(root: Path, table: str = "dbo.g") -> list[str]:
    return sorted(r["s"] for r in lake.read(f"{root}/lake/{table}").to_pylist())


@pytest.mark.slow
def test_a_new_file_with_older_changes_stops_the_call(spark: SparkSession, tmp_path: Path) -> None:
    """Sequences of OpenEdge, SQDR and solidDB have no times: they begin with zeros."""
    first, late, last = ("0" * 16 + line[16:] for line in (FIRST, LATE, LAST))
    put(tmp_path, "1", first, last)
    for _ in range(2):
        apply(spark, tmp_path, ruling=RULES)
    put(tmp_path, "2", late)
    for dry_run in (True, False):
        with pytest.raises(ApplyError, match=r"dbo\.g: 2\.csv \(new\)"):
            apply(spark, tmp_path, ruling=RULES, dry_run=dry_run)
    assert rows(tmp_path) == ["1", "3"]
    done = apply(spark, tmp_path, ruling=RULES, skip_late=True)
    assert "older changes are skipped: dbo.g: 2.csv (new)" in done["notes"]
    assert rows(tmp_path) == ["1", "3"]
    done = apply(spark, tmp_path, ruling=RULES)  # the file is recorded now
    assert not [n for n in done["notes"] if "older" in n]
    (tmp_path / "lake" / "dbo.g").rename(tmp_path / "old")  # a new target gets it
    apply(spark, tmp_path, ruling=RULES)
    assert rows(tmp_path) == ["1", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["_record_unnamed", "_each"], ids=["after the changes", "before them"])
def test_a_call_that_was_killed_has_recorded_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    def dies(*args: Any, **more: Any) -> None:
        raise RuntimeError("killed")

    put(tmp_path, "1", FIRST)
    apply(spark, tmp_path)
    put(tmp_path, "3", LAST)
    with monkeypatch.context() as patch:
        patch.setattr(vendor_apply, ends, dies)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="killed"):
                apply(spark, tmp_path)
    put(tmp_path, "2", LATE)
    if ends == "_each":
        apply(spark, tmp_path)
        assert rows(tmp_path) == ["1", "2", "3"]
        return
    with pytest.raises(ApplyError, match=r"2\.csv \(new\)"):
        apply(spark, tmp_path)


def test_a_repaired_bad_row_is_a_late_change(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", FIRST, LATE.replace(",I,", ",X,"), LAST)
    apply(spark, tmp_path, fail=False)
    assert rows(tmp_path) == ["1", "3"]
    put(tmp_path, "1", FIRST, LATE, LAST)
    with pytest.raises(ApplyError, match=r"1\.csv \(changed\)"):
        apply(spark, tmp_path)


def seq(time: int, number: int) -> str:
    return f"2026110208{time:04}00{number:019}"


@pytest.mark.slow
def test_files_may_grow_be_taken_away_and_be_put_back(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", FIRST)
    apply(spark, tmp_path)
    put(tmp_path, "1", FIRST, LATE)
    apply(spark, tmp_path)
    file = tmp_path / "changes" / "dbo.g__ct" / "1.csv"
    file.rename(tmp_path / "away")
    put(tmp_path, "2", LAST)
    apply(spark, tmp_path)
    (tmp_path / "away").rename(file)
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["1", "2", "3"]


@pytest.mark.slow
def test_a_compacted_delta_table_has_new_files_with_older_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = str(tmp_path / "changes" / "dbo.g__ct")

    def add(*numbers: int) -> None:
        columns = [("header__change_seq", [seq(0, n) for n in numbers]),
                   ("header__change_oper", ["I" for _ in numbers]),
                   ("id", list(numbers)), ("s", [str(n) for n in numbers])]  # fmt: skip
        lake.append(folder, pa.table(dict(columns)))

    for number in (1, 2, 4):
        add(number)
        apply(spark, tmp_path)
    DeltaTable(folder).optimize.compact()
    add(5)
    with pytest.raises(ApplyError, match=r"dbo\.g: .*\.parquet \(new\)"):
        apply(spark, tmp_path)
    apply(spark, tmp_path, skip_late=True)
    assert rows(tmp_path) == ["1", "2", "4", "5"]


@pytest.mark.slow
def test_a_new_target_has_no_changes_of_files_that_were_taken_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, "1", FIRST)
    put(tmp_path, "2", LAST)
    apply(spark, tmp_path)
    (tmp_path / "changes" / "dbo.g__ct" / "1.csv").unlink()
    (tmp_path / "lake" / "dbo.g").rename(tmp_path / "old")
    apply(spark, tmp_path)
    put(tmp_path, "1", FIRST)
    with pytest.raises(ApplyError, match=r"1\.csv \(new\)"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["3"]


@pytest.mark.slow
def test_changes_after_a_stop_are_not_late(spark: SparkSession, tmp_path: Path) -> None:
    stops = vendor_apply.ruling("strict", {"insert_exists": "stop"}, None, None, "all")
    again = LATE.replace(",2,2", ",1,2")
    put(tmp_path, "20261102-081500500", FIRST, again, LAST)
    with pytest.raises(ApplyError, match="insert_exists"):
        apply(spark, tmp_path, ruling=stops)
    assert rows(tmp_path) == ["1"]
    continues = vendor_apply.ruling("strict", {"insert_exists": "log"}, None, None, "all")
    apply(spark, tmp_path, ruling=continues)
    assert rows(tmp_path) == ["1", "3"]


@pytest.mark.slow
def test_times_order_changes_whose_numbers_restart(spark: SparkSession, tmp_path: Path) -> None:
    first, late, last, more = (f"20261102081500{n}{1:019d},I,{n},{n}\n" for n in (50, 60, 70, 80))
    put(tmp_path, "20261102-081500500", first, last)
    apply(spark, tmp_path)
    put(tmp_path, "20261102-081500501", late)
    with pytest.raises(ApplyError, match=r"20261102-081500501\.csv \(new\)"):
        apply(spark, tmp_path)
    (tmp_path / "changes" / "dbo.g__ct" / "20261102-081500501.csv").unlink()
    put(tmp_path, "20261102-081500502", more)
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["50", "70", "80"]


def test_a_repeated_file_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "20261102-081500500", FIRST, LATE)
    put(tmp_path, "20261102-081500501", FIRST, LATE)
    put(tmp_path, "20261102-081500502", LAST)
    done = apply(spark, tmp_path)
    note = "dbo.g: 2 duplicate rows, equal in every column; each is read once"
    assert (done["bad"], done["rejects"], note in done["notes"]) == (0, None, True)
    assert rows(tmp_path) == ["1", "2", "3"]
    (tmp_path / "changes" / "dbo.g__ct" / "20261102-081500500.csv").unlink()
    apply(spark, tmp_path)  # the copy is recorded, too
    put(tmp_path, "20261102-081500503", FIRST, LATE)
    with pytest.raises(ApplyError, match=r"dbo\.g: 20261102-081500503\.csv \(new\)"):
        apply(spark, tmp_path)


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
    with pytest.raises(FormatError, match=f"sequence {seq} is beyond the 63 bits") as told:
        apply(spark, tmp_path)
    assert "solidDB" not in str(told.value)
    assert not (tmp_path / "lake" / "dbo.g").exists()


@pytest.mark.slow
def test_numbers_that_rise_need_not_go_with_their_times(spark: SparkSession, tmp_path: Path) -> None:
    """A number made of both would have more than 63 bits."""
    ends = {
        "dbo.last": ("2026110208150060", 2**63 - 1),
        "dbo.great": ("2026110208150060", 7 * 10**18),
        "dbo.later": ("2199110208150060", 2),
    }
    for table, (time, number) in ends.items():
        put(tmp_path, "20261102-081500500", FIRST, f"{time}{number:019d},I,2,2\n", table=table)
    for _ in range(2):
        found = {one["table"]: one["up to"] for one in apply(spark, tmp_path)["tables"]}
        assert found == {table: number for table, (_, number) in ends.items()}
    assert [rows(tmp_path, table) for table in ends] == [["1", "2"]] * 3


@pytest.mark.slow
def test_great_numbers_come_late_as_others_do(spark: SparkSession, tmp_path: Path) -> None:
    """From 2^52 on they are as great as those that are made of a time and a number."""
    time = "2026110208150060"
    put(tmp_path, "20261102-081500500", FIRST, f"{time}{5 * 10**18:019d},I,2,2\n")
    apply(spark, tmp_path)
    assert apply(spark, tmp_path)["tables"][0]["up to"] == 5 * 10**18
    put(tmp_path, "20261102-081500501", f"{time}{49 * 10**17:019d},I,3,3\n")
    with pytest.raises(ApplyError, match=r"20261102-081500501\.csv \(new\)"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["1", "2"]


@pytest.mark.slow
def test_numbers_that_do_not_go_with_times_are_refused_where_times_tell(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They would be taken for numbers from long before the target's progress."""
    put(tmp_path, "20261102-081500500", *(f"20261102081500{n}{1:019d},I,{n},{n}\n" for n in (50, 60)))
    apply(spark, tmp_path)
    (tmp_path / "changes" / "dbo.g__ct" / "20261102-081500500.csv").unlink()
    put(tmp_path, "20261102-081500501", f"2026110208150070{NUMBER_LIMIT + 5:019d},I,70,70\n")
    with pytest.raises(FormatError, match="16,777,216 on cannot be combined with their times"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["50", "60"]


def test_a_sequence_without_a_time_comes_late_where_times_tell(spark: SparkSession, tmp_path: Path) -> None:
    """It precedes all others, whatever its number."""
    put(tmp_path, "20261102-081500500", *(f"20261102081500{n}{1:019d},I,{n},{n}\n" for n in (50, 60)))
    apply(spark, tmp_path)
    put(tmp_path, "20261102-081500501", f"{9:035d},I,9,9\n")
    with pytest.raises(ApplyError, match=r"20261102-081500501\.csv \(new\)"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["50", "60"]
