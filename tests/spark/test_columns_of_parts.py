"""`tailrace apply` of changes in parts: which columns of a target they are about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.lake import delta as lake
from tailrace.operate import vendor_apply

pytestmark = pytest.mark.spark


def apply(spark: SparkSession, root: Path, form: str, text: str, kind: str, **more: Any) -> Any:
    """Applies these lines alone: earlier ones were moved away."""
    folder = root / "changes" / "s.t__ct"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"1.{kind}").write_text(text)
    return vendor_apply.run(spark, str(folder.parent), form, {"key": "id"}, str(root / "lake"), **more)


def lines(*changes: tuple[int, str, dict[str, str]]) -> str:
    """JSON lines, NULLs left out."""
    heads = (
        {"header__change_seq": f"2026110208150050{n:019d}", "header__change_oper": k} for n, k, _ in changes
    )
    return "".join(json.dumps({**h, **row}) + "\n" for h, (_, _, row) in zip(heads, changes, strict=True))


def rows(root: Path) -> list[dict[str, Any]]:
    return lake.read(f"{root}/lake/s.t").sort_by("id").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_another_spelling_of_a_column_is_no_other_column(spark: SparkSession, tmp_path: Path) -> None:
    head, seq = "header__change_seq,header__change_oper,", "2026110208150050000000000000000000"
    apply(spark, tmp_path, "qlik", f"{head}id,Note\n{seq}1,I,1,a\n{seq}2,I,2,b\n", "csv")
    apply(spark, tmp_path, "qlik", f"{head}id,note\n{seq}3,U,2,c\n", "csv")
    assert rows(tmp_path) == [{"id": "1", "Note": "a"}, {"id": "2", "Note": "c"}]


@pytest.mark.slow
def test_an_old_file_that_comes_again_alone_takes_no_column_away(spark: SparkSession, tmp_path: Path) -> None:
    """It has the layout of then; all of its changes are in the target."""
    head, seq = "header__change_seq,header__change_oper,", "2026110208150050000000000000000000"
    old = f"{head}id,v\n{seq}1,I,1,a\n"
    apply(spark, tmp_path, "qlik", old, "csv")
    newer = tmp_path / "changes" / "s.t__ct" / "2.csv"
    newer.write_text(f"{head}id,v,note\n{seq}2,I,2,b,n\n")
    apply(spark, tmp_path, "qlik", old, "csv")
    newer.unlink()
    for dry_run in (True, False):
        done = apply(spark, tmp_path, "qlik", old, "csv", dry_run=dry_run)["tables"][0]
    assert (done["progress"], done["plan"]) == (2, "none")
    assert rows(tmp_path) == [{"id": "1", "v": "a", "note": None}, {"id": "2", "v": "b", "note": "n"}]


@pytest.mark.parametrize("form", ["qlik", pytest.param("tailrace", marks=pytest.mark.slow)])
def test_a_column_that_no_json_line_has_is_null(spark: SparkSession, tmp_path: Path, form: str) -> None:
    first = [(1, "I", {"id": "1", "v": "a", "more": "x"}), (2, "I", {"id": "2", "v": "b", "more": "y"})]
    apply(spark, tmp_path, form, lines(*first), "jsonl")
    then = [(3, "I", {"id": "3", "v": "c"}), (4, "U", {"id": "2", "v": "d"})]
    apply(spark, tmp_path, form, lines(*then), "jsonl")
    assert rows(tmp_path) == [
        {"id": "1", "v": "a", "more": "x"},
        {"id": "2", "v": "d", "more": None},
        {"id": "3", "v": "c", "more": None},
    ]


@pytest.mark.slow
def test_json_lines_without_the_mode_of_an_archive_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    archive = vendor_apply.ruling("archive", {}, None, None, "all")
    apply(spark, tmp_path, "qlik", lines((1, "I", {"id": "1", "v": "a"})), "jsonl", ruling=archive)
    with pytest.raises(ConfigError, match="the target is an archive"):
        apply(spark, tmp_path, "qlik", lines((2, "D", {"id": "1"})), "jsonl")
    apply(spark, tmp_path, "qlik", lines((2, "D", {"id": "1"})), "jsonl", ruling=archive)
    found = {
        (r["id"], r["v"], r["header__change_oper"], r["header__change_seq"][-2:]) for r in rows(tmp_path)
    }
    assert found == {("1", "a", "I", "01"), ("1", None, "D", "02")}


@pytest.mark.slow
def test_json_lines_of_openedge_leave_out_what_is_null(spark: SparkSession, tmp_path: Path) -> None:
    for number, row in (("1", {"Id": "1", "More": "x"}), ("2", {"Id": "2"})):
        change = {"_Change-Sequence": number, "_Operation": "1"}
        tables = {"PUB.CDC_Item": {**change, **row}, "PUB._Cdc-Change-Tracking": change}
        (tmp_path / "changes").mkdir(exist_ok=True)
        for name, line in tables.items():
            (tmp_path / "changes" / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
        place, given = str(tmp_path / "changes"), {"keys": "PUB.Item=Id"}
        vendor_apply.run(spark, place, "openedge", given, str(tmp_path / "lake"))
    found = lake.read(f"{tmp_path}/lake/PUB.Item").sort_by("Id").to_pylist()
    assert found == [{"Id": "1", "More": "x"}, {"Id": "2", "More": None}]
