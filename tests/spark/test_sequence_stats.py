"""The scan of the headers of vendors' tables: whether their numbers increase, and the counts of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.vendor import applier, change_stats, sequence_stats
from tailrace.formats.base import FILE, FINER, WHY
from tailrace.formats.shape import few_rows
from tailrace.model.change import ChangeTable
from tailrace.operate import vendor_apply

from .test_late_changes import FIRST, LAST, RULES, apply, put, rows

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("sequences", "increasing"),
    [
        (["0" * 35] * 2, True),
        (["0" * 35, "20261102081500500000000000000000005", "20261102081500600000000000000000006"], True),
        (["20261102081500500000000000000000005", "20261102081500600000000000000000004"], False),
        (["20261102081500500000000000000000005", "2026x102081500600000000000000000006"], False),
    ],
    ids=["a full load", "a full load and changes", "they restart", "an invalid time"],
)
def test_numbers_that_do_not_follow_their_times_are_found(
    spark: SparkSession, sequences: list[str], increasing: bool
) -> None:
    found = sequence_stats.scan(headers(spark, [(seq, "I", None, None) for seq in sequences]))
    assert found.increasing == increasing


@pytest.mark.parametrize(
    "key", [pytest.param(["id"], id="a key"), pytest.param([], id="no key", marks=pytest.mark.slow)]
)
def test_row_counts_are_those_of_a_separate_scan(spark: SparkSession, key: list[str]) -> None:
    """They are unknown if a row is bad."""
    time, later = "2026110208150050", "2026110208150060"
    good = [
        ("0" * 35, "I", None, "LOAD.csv"),
        (f"{time}{7:019d}", "I", None, "1.csv"),
        (f"{time}{8:019d}", "B", None, "1.csv"),
        (f"{time}{8:019d}", "U", b"\x01", "1.csv"),
        (f"{later}{9:019d}", "D", b"\x01", "2.csv"),
        (f"{later}{10:019d}", "T", None, None),
    ]
    for some in (good, good[1:3], good[:1], []):
        table = headers(spark, some, key)
        assert sequence_stats.scan(table).rows == (change_stats.scan(table) if key else None)
    for wrong in ("12", None, f"{later}{'x' * 19}"):
        assert sequence_stats.scan(headers(spark, [*good, (wrong, "I", None, "2.csv")], key)).rows is None
    for odd in (f"if({FILE} = '2.csv', 'no number', null) {WHY}", f"{FILE} = '2.csv' {FINER}"):
        table = headers(spark, good, key)
        assert sequence_stats.scan(table.with_df(table.df.selectExpr("*", odd))).rows is None


@pytest.mark.parametrize(
    "ruled",
    [pytest.param({}, id="plain"), pytest.param({"ruling": RULES}, id="rules", marks=pytest.mark.slow)],
)
def test_a_first_call_reads_headers_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ruled: dict[str, Any]
) -> None:
    put(tmp_path, "20261102-081500500", FIRST, LAST)
    with monkeypatch.context() as patch:
        patch.setattr(vendor_apply, "scan", None)
        patch.setattr(applier, "scan", None)
        done = apply(spark, tmp_path, **ruled)["tables"][0]
    assert (done["I"], done["inserted"], done["up to"]) == (2, 2, 3)
    assert rows(tmp_path) == ["1", "3"]
    again = apply(spark, tmp_path, **ruled)["tables"][0]
    assert (again["inserted"], again["up to"]) == (0, 3)


def headers(
    spark: SparkSession,
    rows: list[tuple[str | None, str, bytes | None, str | None]],
    key: Sequence[str] = ("id",),
) -> ChangeTable:
    """A change table of these sequences, operations, column masks and files."""
    names = ("header__change_seq", "header__change_oper", "header__column_mask", FILE)
    kinds = dict(zip(names, ("string", "string", "binary", "string"), strict=True)) | {"id": "int"}
    made = [dict(zip(names, row, strict=True)) | {"id": 1} for row in rows]
    return ChangeTable(few_rows(spark, kinds, made), key, ["id"], name="s.t")
