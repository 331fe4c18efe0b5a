"""Qlik's folders of files: DFM, layouts, a full load, JSON lines, what is wrong with them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import FormatError
from tailrace.formats import checks
from tailrace.formats.base import FILE, RAW, WHY
from tailrace.formats.qlik.dfm import Dfm, DfmColumn, column
from tailrace.formats.qlik.file_reader import Count, completeness
from tailrace.formats.qlik.options import QlikOptions
from tailrace.operate import vendor_apply
from tailrace.testing.changes import comparable_rows, reasons

from .test_format_qlik import QLIK, images, seq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def header_columns() -> list[DfmColumn]:
    kinds = {
        "change_seq": "string",
        "change_oper": "string",
        "change_mask": "binary",
        "timestamp": "timestamp",
    }
    return [column(i, f"header__{n}", k, header=n) for i, (n, k) in enumerate(kinds.items(), 1)]


def put(folder: Path, stem: str, lines: list[str], columns: list[DfmColumn], **meta: Any) -> None:
    """A CSV file as Qlik writes it, packed, with its DFM."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ",".join(c.name for c in columns)
    (folder / f"{stem}.csv.gz").write_bytes(gzip.compress("\n".join([names, *lines, ""]).encode()))
    meta = {"records": len(lines), **meta}
    (folder / f"{stem}.dfm").write_text(Dfm(f"{stem}.csv", tuple(columns), **meta).to_json())


@pytest.fixture
def replicated(tmp_path: Path) -> Path:
    """A full load, then changes in two layouts: `price` came between `id` and `name`, `old` went."""
    folder, heads = tmp_path / "dbo.item__ct", header_columns()
    at = "2026-01-01 12:00:00.120"
    first = [
        *heads,
        DfmColumn(5, "id", "INT4", key=1),
        DfmColumn(6, "name", "WSTRING", length=20),
        DfmColumn(7, "old", "DATE"),
    ]
    second = [
        *heads,
        DfmColumn(5, "id", "INT8", key=1),
        DfmColumn(6, "price", "NUMERIC", precision=10, scale=2),
        DfmColumn(7, "name", "WSTRING", length=20),
    ]
    lines = [
        f'{seq(1)},I,70,{at},1,"a, ""b""\nc",2020-02-29',
        f"{seq(2)},B,,{at},1,x,",
        f"{seq(2)},U,20,{at},1,,",
    ]
    put(folder, "20260101-120000120", lines, first, start="2026-01-01T12:00:00.120", version=1)
    lines = [f"{seq(3)},U,0020,{at},1,12.50,y", f'{seq(4)},I,70,{at},5000000000,,""']
    put(folder, "20260101-120001120", lines, second, start="2026-01-01T12:00:01.120", version=2)
    loaded = [replace(c, ordinal=i) for i, c in enumerate(first[4:], 1)]
    start = "2026-01-01T11:00:00.500"
    put(
        tmp_path / "dbo.item",
        "LOAD00000001",
        ["1,zero,", "2,,2020-01-01"],
        loaded,
        content="data",
        start=start,
    )
    return tmp_path


@pytest.mark.slow
def test_layouts_and_full_load_as_one_table(spark: SparkSession, replicated: Path) -> None:
    options = QlikOptions()
    read = QLIK.read(QLIK.load(spark, str(replicated), options), options)
    ct = read.changes["dbo.item"]
    assert reasons(ct) == []
    assert (ct.key, ct.columns) == (["id"], ["id", "price", "name", "old"])
    kinds = [ct.df.schema[c].dataType.simpleString() for c in ct.columns]
    assert kinds == ["bigint", "decimal(10,2)", "string", "date"]
    assert read.notes == ("dbo.item__ct: 2 layouts were merged into one",)
    found = comparable_rows(ct, headers=["native_oper", "timestamp"])
    at, start, day = "2026-01-01 12:00:00.12", "2026-01-01 11:00:00.5", date(2020, 2, 29)
    gone, absent = ("id", "name", "old"), "(absent)"
    assert sorted(found, key=lambda r: r[0]) == [
        (0, "I", None, gone, ("L", start), (1, absent, "zero", None)),
        (1, "I", None, gone, ("L", start), (2, absent, None, date(2020, 1, 1))),
        (2, "I", ("id", "name", "old"), gone, (None, at), (1, absent, 'a, "b"\nc', day)),
        (3, "B", None, gone, (None, at), (1, absent, "x", None)),
        (3, "U", ("name",), gone, (None, at), (1, absent, None, None)),
        (4, "U", ("price",), ("id", "price", "name"), (None, at), (1, Decimal("12.50"), "y", absent)),
        (
            5,
            "I",
            ("id", "price", "name"),
            ("id", "price", "name"),
            (None, at),
            (5000000000, None, "", absent),
        ),
    ]
    assert reasons(checks.in_order(checks.together(ct))) == []
    assert completeness(spark, str(replicated), options) == []


@pytest.mark.slow
def test_a_folder_inside_a_change_tables_is_read_with_it(spark: SparkSession, replicated: Path) -> None:
    options = QlikOptions()

    def read() -> list[tuple[Any, ...]]:
        (ct,) = QLIK.read(QLIK.load(spark, str(replicated), options), options).changes.values()
        assert ct.name == "dbo.item"
        return comparable_rows(ct)

    before = read()
    (inside := replicated / "dbo.item__ct" / "sub").mkdir()
    for file in (replicated / "dbo.item__ct").glob("20260101-120001120.*"):
        file.rename(inside / file.name)
    assert read() == before


def test_what_is_wrong_with_files_is_said(spark: SparkSession, tmp_path: Path) -> None:
    columns = [*header_columns(), DfmColumn(5, "id", "INT4", key=1), DfmColumn(6, "at", "DATETIME")]
    lines = [
        f"{seq(1)},I,30,2026-01-01 12:00:00,1,2026-01-01T10:00:00.5",
        f"{seq(2)},I,30,2026-01-01 12:00:00,one,2026-01-01",
        f"{seq(3)},I,30,2026-01-01 12:00:00,3",
        f"{seq(4)},I,3x,yesterday,4,",
    ]
    put(tmp_path / "dbo.item__ct", "20260101-120000120", lines, columns, records=7, errors=2)
    read = QLIK.read(QLIK.load(spark, str(tmp_path), QlikOptions()), QlikOptions())
    ct = read.changes["dbo.item"]
    rows = {(r["header__change_seq"] or "3")[-1]: r for r in ct.df.collect()}
    assert rows["1"][WHY] is None
    assert rows["2"][WHY] == "id is not valid as int"
    assert rows["3"][WHY] == "the line has 5 values, not 6; no change_seq; no change_oper"
    assert rows["3"][RAW] == lines[2]
    assert (
        rows["4"][WHY]
        == "header__timestamp is not valid as timestamp; header__change_mask is not valid as binary"
    )
    assert rows["1"][FILE].endswith("dbo.item__ct/20260101-120000120.csv.gz")
    assert read.notes == ("dbo.item__ct: dbo.item__ct/20260101-120000120.csv.gz: its DFM counts 2 errors",)
    found = completeness(spark, str(tmp_path), QlikOptions())
    assert found == [Count("dbo.item__ct/20260101-120000120.csv.gz", 7, 4)]


def test_a_cut_off_file_is_not_applied(spark: SparkSession, tmp_path: Path) -> None:
    columns = [*header_columns(), DfmColumn(5, "id", "INT4", key=1)]
    lines = [f"{seq(n)},I,10,2026-01-01 12:00:00,{n}" for n in (1, 2)]
    put(tmp_path / "in" / "dbo.item__ct", "20260101-120000120", lines, columns, records=5)
    where = (str(tmp_path / "in"), "qlik", {}, str(tmp_path / "lake"))
    said = "dbo.item__ct/20260101-120000120.csv.gz has 2 rows, its DFM has 5"
    for dry_run in (True, False):
        with pytest.raises(FormatError, match=said) as refused:
            vendor_apply.run(spark, *where, dry_run=dry_run)
        assert "--on-bad reject" in (refused.value.hint or "")
    assert not (tmp_path / "lake" / "dbo.item").exists()
    done = vendor_apply.run(spark, *where, fail=False)
    assert (done["tables"][0]["inserted"], said in done["notes"]) == (2, True)


def test_json_lines(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "dbo.item__ct"
    folder.mkdir()
    columns = [*header_columns(), DfmColumn(5, "id", "INT4", key=1), DfmColumn(6, "n", "NUMERIC", 0, 30, 10)]
    line = {"header__change_seq": seq(1), "header__change_oper": "I", "header__change_mask": "30", "id": 1}
    exact = json.dumps(line)[:-1] + ', "n": 12345678901234567890.0123456789}'
    text = [exact, json.dumps({**line, "header__change_seq": seq(2), "n": "x"}), "{no json"]
    finer = json.dumps({**line, "header__change_seq": seq(3)})[:-1] + ', "n": 1.00000000005}'
    text.append(finer)
    (folder / "20260101-120000120.json").write_text("\n".join(text))
    (folder / "20260101-120000120.dfm").write_text(Dfm("x.json", tuple(columns), format="json").to_json())
    ct = QLIK.read(QLIK.load(spark, str(tmp_path), QlikOptions()), QlikOptions()).changes["dbo.item"]
    rows = {r["header__change_seq"]: r for r in ct.df.collect()}
    assert (rows[seq(1)]["n"], rows[seq(1)][WHY]) == (Decimal("12345678901234567890.0123456789"), None)
    assert (rows[seq(2)]["n"], rows[seq(2)][WHY]) == (None, "n is not valid as decimal(30,10)")
    assert (rows[seq(3)]["n"], rows[seq(3)][WHY]) == (None, "n is not valid as decimal(30,10)")
    assert '"n":"1.00000000005"' in rows[seq(3)][RAW]
    assert rows[None][RAW] == "{no json"
    assert "not JSON" in rows[None][WHY]


def test_json_lines_without_dfm(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        {"header__change_seq": seq(1), "header__change_oper": "D", "id": "1"},
        {"header__change_seq": seq(2), "header__change_oper": "I", "id": 2, "more": "m"},
    ]
    (tmp_path / "20260101-120000120.json").write_text("\n".join(map(json.dumps, lines)))
    options = QlikOptions(key="id")
    read = QLIK.read(QLIK.load(spark, str(tmp_path), options), options)
    (ct,) = read.changes.values()
    assert reasons(ct) == []
    assert images(ct) == [(1, "D", None, "1", None), (2, "I", None, "2", "m")]


# -- writing
