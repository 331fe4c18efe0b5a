"""Text files through formats: bad lines with their reason, encodings, delimiters, what is kept aside twice."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace import formats
from tailrace.errors import ApplyError, ConfigError, FormatError
from tailrace.formats import convert, file_reader
from tailrace.formats.base import FILE, ROW, WHY
from tailrace.operate import vendor_apply as incoming
from tailrace.testing.changes import reasons

from .literal_tables import rows_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
HEADERS = "header__change_seq,header__change_oper"


def seq(n: int, time: str = "2026010112000000") -> str:
    return f"{time}{n:019d}"


def put(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.slow
def test_what_is_kept_aside_grows(spark: SparkSession, tmp_path: Path) -> None:
    place, lake = tmp_path / "in" / "shop.item__ct.csv", str(tmp_path / "lake")
    lines = [f"{HEADERS},id,name", f"{seq(1)},I,1,a", f"{seq(2)},Q,2,b", f"{seq(3)},I,3", f"{seq(3)},I,3"]
    put(place, "\n".join([*lines, ""]))

    def applied() -> list[tuple[str, int]]:
        done = incoming.run(spark, str(place), "tailrace", {"key": "id"}, lake, fail=False)
        rows = spark.read.parquet(done["rejects"]).orderBy("row", "reason").collect()
        assert {r["table"] for r in rows} == {"shop.item"}
        return [(r["reason"].partition(";")[0], r["row"]) for r in rows]

    first = [
        ("unknown operation Q", 2),
        ("the line has 3 values, not 4", 3),
        ("the line has 3 values, not 4", 4),
    ]
    assert applied() == first
    assert applied() == first
    put(place, "\n".join([*lines, f"{seq(5)},Z,5,e", ""]))
    assert applied() == [*first, ("unknown operation Z", 5)]


@pytest.mark.slow
def test_sequences_that_differ_in_their_time_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Order is all 35 digits, and so is what a target has already; where only numbers are kept, it is told."""
    place, lake = tmp_path / "in" / "shop.item__ct.csv", str(tmp_path / "lake")
    times = ["2026010112000000", "2026010112000050", "2026010112000100"]

    def applied(*lines: str) -> tuple[list[tuple[str, str]], int]:
        put(place, "\n".join([f"{HEADERS},id,name", *lines, ""]))
        done = incoming.run(spark, str(place), "tailrace", {"key": "id"}, lake)
        rows = rows_at(spark, f"{lake}/shop.item").orderBy("id").collect()
        return [(r["id"], r["name"]) for r in rows], done["tables"][0]["inserted"]

    first = [f"{seq(1, times[0])},I,1,a", f"{seq(1, times[1])},U,1,b"]
    assert applied(*first) == ([("1", "b")], 1)
    more = f"{seq(1, times[2])},I,2,c"
    assert applied(*first, more) == ([("1", "b"), ("2", "c")], 1)
    with pytest.raises(ApplyError, match=r"shop\.item__ct\.csv \(changed\)"):
        applied(more)  # a file that has lost its first changes
    side = convert.side("tailrace", str(place), {})
    put(place, "\n".join([f"{HEADERS},id,name", *first, more, ""]))
    for form, options, bad in (("sqdr", {}, 0), ("openedge", {}, 2), ("openedge", {"sequence": "rank"}, 0)):
        out = convert.side(form, str(tmp_path / f"{form}{len(options)}"), options)
        assert convert.convert(spark, side, out).tables["shop.item"].bad == bad, form
    lake = str(tmp_path / "other")
    applied(f"{seq(7, times[0])},I,1,a")
    with pytest.raises(FormatError, match="restart; the target has changes up to number 7"):
        applied(f"{seq(7, times[0])},I,1,a", f"{seq(1, times[1])},U,1,b")


@pytest.mark.slow
def test_qlik_changes_of_text_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing but text columns, other delimiters, and lines that are none."""
    load = put(tmp_path / "a" / "dbo.item" / "LOAD00000001.csv", 'id;name\n1;a\n2;b;c\n3;"x\n')
    done = incoming.run(spark, str(load), "qlik", {"key": "id"}, str(tmp_path / "lake"), fail=False)
    assert (done["tables"][0]["I"], done["bad"]) == (1, 2)
    changes = f"{HEADERS},id,name\n{seq(1)},I,1,a\n".replace(",", "\t")
    put(tmp_path / "b" / "dbo.item__ct" / "20260101-120000001.csv", changes)
    report = convert.convert(
        spark,
        convert.side("qlik", str(tmp_path / "b"), {"key": "id"}),
        convert.side("tailrace", str(tmp_path / "out"), {}),
    )
    assert report.as_dict()["tables"] == {"dbo.item": {"rows": 1, "bad": 0, "lost": {}, "again": 0}}


@pytest.mark.slow
def test_each_format_gives_bad_lines_their_reason(spark: SparkSession, tmp_path: Path) -> None:
    """A line of another encoding in each vendor's example: it is a bad row of some table, and nothing else."""
    examples = Path(__file__).parents[2] / "examples"
    for name, table in (
        ("openedge", "PUB._Cdc-Change-Tracking.csv"),
        ("openedge", "PUB.CDC_Item.csv"),
        ("sqdr", "ir_keylog.csv"),
        ("soliddb", "SYS_LOG.csv"),
    ):
        there = tmp_path / name / table
        for file in (examples / name / "tables").iterdir():
            put(there / file.name, file.read_bytes())
        put(there / table, (examples / name / "tables" / table).read_bytes() + b'1,"M\xfcller\n')
        side = convert.side(name, str(there), {})
        why = [w for ct in convert.read(spark, side, check=False).changes.values() for w in reasons(ct)]
        assert [w for w in why if "a quote that is never closed" in w], (name, table, why)


def test_encodings_and_packed_files(spark: SparkSession, tmp_path: Path) -> None:
    text = f"{HEADERS},id,name\r\n{seq(1)},I,1,Müller\r\n"
    put(tmp_path / "latin" / "shop.item__ct.csv", text.encode("latin-1"))
    put(tmp_path / "packed" / "shop.item__ct.csv.gz", gzip.compress(text.encode()))
    form = formats.get("tailrace")
    for folder, options, want in (
        ("latin", form.options(), [(None, "byte 0xFC is not UTF-8: set the option encoding")]),
        ("latin", form.options(encoding="latin-1"), [("Müller", None)]),
        ("packed", form.options(), [("Müller", None)]),
    ):
        (df,) = file_reader.load(spark, str(tmp_path / folder), options).values()
        assert [(r["name"], r[WHY]) for r in df.collect()] == want
        assert [(r[ROW], r[FILE].startswith("file:///")) for r in df.collect()] == [(1, True)]


def test_json_lines_that_are_none(spark: SparkSession, tmp_path: Path) -> None:
    good = f'{{"header__change_seq": "{seq(1)}", "header__change_oper": "I", "id": 1}}\n'
    place = put(tmp_path / "shop.item__ct.json", "oops\n" + good + good[:-9] + "\n")
    side = convert.side("tailrace", str(place), {})
    (ct,) = convert.read(spark, side).changes.values()
    assert [w.partition(";")[0] for w in reasons(ct)] == ["not JSON", "not JSON"]
    assert ct.columns == ["id"]


def test_nothing_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """Empty input is an error, or told of; what cannot be read is refused by name."""

    def read(name: str, form: str = "tailrace") -> tuple[str, ...]:
        return convert.read(spark, convert.side(form, str(tmp_path / name), {})).notes

    (tmp_path / "none").mkdir()
    put(tmp_path / "zero" / "shop.item__ct.csv", "")
    put(tmp_path / "packed" / "shop.item__ct.zip", b"PK")
    put(tmp_path / "cut" / "shop.item__ct.csv.gz", gzip.compress(b"id\n" * 99)[:-9])
    put(tmp_path / "plain" / "orders.csv", "id,name\n1,a\n")
    put(tmp_path / "some" / "shop.item__ct.csv", f"{HEADERS},id\n")
    put(tmp_path / "some" / "shop.other__ct.csv", "")
    put(tmp_path / "some" / "notes.txt", "")
    for form in formats.names():
        with pytest.raises(ConfigError, match="contains no table"):
            read("none", form)
        with pytest.raises(FormatError, match="is empty"):
            read("zero", form)
        with pytest.raises(ConfigError, match=r"shop\.item__ct\.zip is an archive"):
            read("packed", form)
        with pytest.raises(FormatError, match="cannot be read"):
            read("cut", form)
        with pytest.raises(FormatError):
            read("plain", form)
    assert read("some") == (
        "notes.txt is not a table: not read",
        "shop.other__ct.csv is empty: it does not even have column names",
    )
