"""`tailrace apply` of changes that come after their target has passed their place: they stop it; and of those
that come again: they are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailrace.apply.vendor.late_changes import LateChanges
from tailrace.apply.vendor.numbering import PARTS
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
@pytest.mark.parametrize(
    ("ruling", "timed"), [(None, True), (RULES, False)], ids=["plain", "rules, without times"]
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


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["the first call", "a later call"])
@pytest.mark.parametrize("ends", ["after the changes", "before the changes"])
def test_a_call_that_ended_early_has_said_what_it_would_pass(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool, ends: str
) -> None:
    """Killed between the target's commit and the note, or stopped by the changes of another table."""

    def dies(*args: Any, **more: Any) -> None:
        raise RuntimeError("killed")

    put(tmp_path, "1", FIRST)
    if not first:
        apply(spark, tmp_path)
    put(tmp_path, "3", LAST)
    with monkeypatch.context() as patch:
        if ends == "after the changes":
            patch.setattr(LateChanges, "note", dies)
        else:
            patch.setattr(vendor_apply, "_each", dies)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="killed"):
                apply(spark, tmp_path)
    put(tmp_path, "2", LATE)
    if ends == "before the changes":
        apply(spark, tmp_path)
        assert rows(tmp_path) == ["1", "2", "3"]
        return
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)
    if not first:
        return
    apply(spark, tmp_path, skip_late=True)
    move(tmp_path, "1")
    apply(spark, tmp_path)  # it is known by now, and so is what was in the file that is gone
    put(tmp_path, "1", FIRST)
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["1", "3"]


def test_a_row_that_was_bad_and_is_repaired_comes_late(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "20261102-081500500", FIRST, LATE.replace(",I,", ",X,"), LAST)
    apply(spark, tmp_path, fail=False)
    assert rows(tmp_path) == ["1", "3"]
    put(tmp_path, "20261102-081500500", FIRST, LATE, LAST)
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)


@pytest.mark.slow
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


def seq(time: int, number: int) -> str:
    return f"2026110208{time:04}00{number:019}"


def move(root: Path, name: str, to: str | None = None) -> None:
    folder = root / "changes" / "dbo.g__ct"
    (folder / f"{name}.csv").rename(folder / f"{to}.csv" if to else root / f"{name}.csv")


@pytest.mark.slow
def test_a_late_change_is_told_when_files_were_moved_away(spark: SparkSession, tmp_path: Path) -> None:
    """As many changes and more are gone, so a count alone tells nothing."""
    more = LAST.replace("3,I,3,3", "5,I,5,5")
    put(tmp_path, "1", FIRST, LATE, LAST.replace("3,I,3,3", "4,I,4,4"))
    apply(spark, tmp_path)
    move(tmp_path, "1")
    put(tmp_path, "2", LAST, more)
    with pytest.raises(ApplyError, match=r"dbo\.g: 1 change came late"):
        apply(spark, tmp_path)
    done = apply(spark, tmp_path, skip_late=True)
    assert "dbo.g: 1 change came late: skipped" in done["notes"]
    assert rows(tmp_path) == ["1", "2", "4", "5"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2", "1"], ids=["another file", "in the same file"])
def test_numbers_that_begin_anew_are_told_when_files_were_moved_away(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    put(tmp_path, "1", *(f"{seq(n, 10 + n)},I,{n},{n}\n" for n in (1, 2, 4)))
    apply(spark, tmp_path)
    move(tmp_path, "1")
    put(tmp_path, name, f"{seq(5, 1)},I,5,5\n", f"{seq(6, 2)},I,6,6\n")
    with pytest.raises(ApplyError, match="2 changes came late") as told:
        apply(spark, tmp_path)
    assert told.value.hint is not None and "another `--name`" in told.value.hint
    assert rows(tmp_path) == ["1", "2", "4"]


@pytest.mark.slow
def test_files_that_are_moved_away_or_delivered_under_other_names_are_no_late_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, "1", FIRST)
    put(tmp_path, "2", LATE)
    apply(spark, tmp_path)
    move(tmp_path, "1")
    apply(spark, tmp_path)  # moved away, and nothing else
    move(tmp_path, "2", "other name")
    put(tmp_path, "3", LAST)
    apply(spark, tmp_path)
    (tmp_path / "1.csv").rename(tmp_path / "changes" / "dbo.g__ct" / "back.csv")
    apply(spark, tmp_path)
    put(tmp_path, "0", FIRST, LATE, LAST)  # all of it, and the others are still there
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["1", "2", "3"]


@pytest.mark.slow
def test_a_file_may_grow_and_lose_its_first_changes(spark: SparkSession, tmp_path: Path) -> None:
    """As an extract that is made again and again, of what is kept of a log."""
    put(tmp_path, "1", FIRST)
    apply(spark, tmp_path)
    put(tmp_path, "1", FIRST, LAST)
    apply(spark, tmp_path)
    put(tmp_path, "1", LAST, LAST.replace("3,I,3,3", "4,I,4,4"))
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["1", "3", "4"]
    put(tmp_path, "1", LATE, LAST, LAST.replace("3,I,3,3", "4,I,4,4"))
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)


@pytest.mark.slow
def test_a_delta_table_that_is_optimized_has_no_late_changes(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "changes" / "dbo.g__ct")

    def add(*numbers: int) -> None:
        made = [("header__change_seq", [seq(0, n) for n in numbers]),
                ("header__change_oper", ["I" for _ in numbers]),
                ("id", list(numbers)), ("s", [str(n) for n in numbers])]  # fmt: skip
        lake.append(folder, pa.table(dict(made)))

    for number in (1, 2, 4):
        add(number)
    apply(spark, tmp_path)
    DeltaTable(folder).optimize.compact()
    add(5)
    apply(spark, tmp_path)
    DeltaTable(folder).delete("id = 1")  # purged
    apply(spark, tmp_path)
    assert rows(tmp_path) == ["1", "2", "4", "5"]
    add(3)
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)


@pytest.mark.slow
def test_a_target_made_anew_has_nothing_of_files_that_were_gone(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", FIRST)
    put(tmp_path, "2", LAST)
    apply(spark, tmp_path)
    move(tmp_path, "1")
    (tmp_path / "lake" / "dbo.g").rename(tmp_path / "old")
    apply(spark, tmp_path)
    put(tmp_path, "1", FIRST)
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["3"]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(True, id="after it was applied", marks=pytest.mark.slow),
        pytest.param(False, id="before anything was applied"),
    ],
)
def test_a_file_that_is_delivered_again_is_read_once(
    spark: SparkSession, tmp_path: Path, before: bool
) -> None:
    put(tmp_path, "20261102-081500500", FIRST, LATE)
    if before:
        apply(spark, tmp_path)
    put(tmp_path, "20261102-081500501", FIRST, LATE)
    put(tmp_path, "20261102-081500502", LAST)
    done = apply(spark, tmp_path)
    said = "dbo.g: 2 duplicate rows, equal in every column; each is read once"
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
    with pytest.raises(ApplyError, match="1 change came late"):
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
    put(tmp_path, "20261102-081500501", f"2026110208150070{PARTS + 5:019d},I,70,70\n")
    with pytest.raises(FormatError, match="16,777,216 on cannot be put together with their times"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["50", "60"]


def test_a_sequence_without_a_time_comes_late_where_times_tell(spark: SparkSession, tmp_path: Path) -> None:
    """It precedes all others, whatever its number."""
    put(tmp_path, "20261102-081500500", *(f"20261102081500{n}{1:019d},I,{n},{n}\n" for n in (50, 60)))
    apply(spark, tmp_path)
    put(tmp_path, "20261102-081500501", f"{9:035d},I,9,9\n")
    with pytest.raises(ApplyError, match="1 change came late"):
        apply(spark, tmp_path)
    assert rows(tmp_path) == ["50", "60"]
