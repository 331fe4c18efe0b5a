"""`tailrace convert` and `inspect` on tailrace's own tables: counts, rejects, losses, stops."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from tailrace import formats
from tailrace.cli.main import app
from tailrace.errors import ConfigError, FormatError
from tailrace.formats import convert, file_writer
from tailrace.formats import inspect as looking
from tailrace.formats.base import operation_gap
from tailrace.testing.changes import Image, change_table, comparable_rows
from tailrace.testing.formats import HISTORIES, full

pytestmark = pytest.mark.spark
TYPES = "id int, amount decimal(12,2), at timestamp"
OPER = "header__change_oper"


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    """What `csv` is, written once."""
    images = [
        *HISTORIES["pairs"],
        Image(4, "D", {"id": 1}),
        Image(5, "T"),
        Image(6, "I", full(6)),
        Image(7, "I", full(7)),
    ]
    df = change_table(spark, images).df.coalesce(1).orderBy("header__change_seq", OPER)
    df = df.withColumn(OPER, F.when(F.col("id") >= 6, "Q").otherwise(F.col(OPER)))
    folder = tmp_path_factory.mktemp("written") / "in"
    file_writer.save({"shop.item__ct": df}, str(folder), "csv")
    return folder


@pytest.fixture
def csv(written, tmp_path):
    """A folder with one change table in CSV: seven good rows, then two bad ones."""
    return shutil.copytree(written, tmp_path / "in")


@pytest.fixture
def no_truncates(monkeypatch):
    """A format that cannot hold truncates."""
    form = replace(
        formats.get("tailrace"), name="poor", cannot=(operation_gap("T", "truncate", "there is no code"),)
    )
    monkeypatch.setattr(formats, "get", lambda _: form)
    return form


def sides(csv, out, kind="parquet"):
    given = {"key": "id", "columns": TYPES}
    return convert.side("tailrace", str(csv), given), convert.side("tailrace", str(out), {}, kind)


def test_a_format_that_cannot_tell_what_images_lack_is_named(spark, tmp_path):
    images = [Image(1, "I", full(1)), Image(2, "U", {"id": 1, "note": "b"}, ["note"])]
    file_writer.save({"shop.item__ct": change_table(spark, images).df}, str(tmp_path / "in"), "parquet")
    source = convert.side("tailrace", str(tmp_path / "in"), {"key": "id"})
    report = convert.convert(spark, source, convert.side("qlik", str(tmp_path / "out"), {}))
    assert report.tables["shop.item"].lost == {"header column_mask": 1}
    (note,) = report.notes
    assert note.startswith(
        "shop.item: the written tables do not show which columns 1 image does not have, and"
    )


def test_counts_and_rejects(spark, csv, tmp_path):
    report = convert.convert(spark, *sides(csv, tmp_path / "out"))
    assert report.as_dict()["tables"] == {"shop.item": {"rows": 7, "bad": 2, "lost": {}, "again": 0}}
    assert report.written == {"shop.item__ct": 7}
    rows = spark.read.parquet(report.rejects).orderBy("row").collect()
    assert [(r["table"], r["reason"], r["row"]) for r in rows] == [
        ("shop.item", "unknown operation Q", 8),
        ("shop.item", "unknown operation Q", 9),
    ]
    assert rows[0]["file"].endswith(".csv")
    assert json.loads(rows[0]["content"])["id"] == "6"
    back = spark.read.parquet(str(tmp_path / "out" / "shop.item__ct"))
    want = [*HISTORIES["pairs"], Image(4, "D", {"id": 1}), Image(5, "T")]
    ct = change_table(spark, want)
    assert comparable_rows(ct.with_df(back)) == comparable_rows(ct)


@pytest.mark.slow
def test_rows_that_are_ordered_are_counted_once(spark, csv, tmp_path):
    shutil.copytree(csv / "shop.item__ct", csv / "shop.line__ct")
    source, _ = sides(csv, tmp_path)
    report = convert.convert(spark, source, convert.side("sqdr", str(tmp_path / "out"), {}))
    assert [(t.rows, t.bad) for t in report.tables.values()] == [(7, 2)] * 2
    log = spark.read.parquet(str(tmp_path / "out" / "ir_keylog")).orderBy("keylog_sort").collect()
    found = [(r["resync_state"], r["change_row_counter"]) for r in log]
    assert found == sorted(found)
    assert len(found) == report.written["ir_keylog"] == 10  # B has no row of its own


def test_another_vendors_tables_in_the_folder_are_said(spark, csv, tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    (csv / "ir_keylog").mkdir()
    shutil.copy(examples / "sqdr" / "tables" / "ir_keylog.csv", csv / "ir_keylog")
    report = convert.convert(
        spark, sides(csv, tmp_path)[0], convert.side("tailrace", str(tmp_path / "out"), {})
    )
    said = "ir_keylog is a table of sqdr: its rows are not converted; use `--from sqdr`"
    assert said in report.notes


def test_bad_rows_can_stop_it(spark, csv, tmp_path):
    with pytest.raises(
        FormatError, match=r"bad row in shop.item: unknown operation Q \(file:.*csv\)"
    ) as error:
        convert.convert(spark, *sides(csv, tmp_path / "out"), on_bad="fail")
    assert error.value.hint == "`--on-bad reject` writes bad rows and their reasons to a separate table"


def test_losses_are_counted(spark, csv, tmp_path, no_truncates):
    report = convert.convert(spark, *sides(csv, tmp_path / "out"))
    assert report.tables["shop.item"].lost == {"truncate": 1}


def test_strict_stops_at_a_loss(spark, csv, tmp_path, no_truncates):
    with pytest.raises(FormatError, match=r"shop\.item: poor cannot hold truncate: there is no code"):
        convert.convert(spark, *sides(csv, tmp_path / "out"), strict=True)


def test_nothing_is_written_over(spark, csv, tmp_path):
    with pytest.raises(ConfigError, match="is not empty"):
        convert.convert(spark, *sides(csv, csv))


def test_inspect(spark, csv):
    found = looking.inspect(spark, str(csv), form="tailrace", given={"key": "id", "columns": TYPES}, rows=3)
    table = found.tables[0]
    assert (table.name, table.key) == ("shop.item", ["id"])
    assert table.operations == {"I": 1, "B": 2, "U": 2, "D": 1, "T": 1, "Q": 2}
    assert table.odd == {"unknown operation Q": 2}
    assert [(r["change_oper"], r["changed"]) for r in table.rows] == [
        ("I", ["id", "name", "amount", "at", "note"]),
        ("B", []),
        ("U", ["name"]),
    ]


@pytest.mark.slow
def test_command(spark, csv, tmp_path):
    words = [
        "convert",
        str(csv),
        str(tmp_path / "o"),
        "--from",
        "tailrace",
        "--to",
        "tailrace",
        "--files",
        "json",
    ]
    done = CliRunner().invoke(app, [*words, "--option", f"columns={TYPES}", "--json"])
    assert done.exit_code == 3, done.output  # bad rows were kept aside
    assert json.loads(done.stdout)["written"] == {"shop.item__ct": 7}
    dry = CliRunner().invoke(app, [*words[:2], str(tmp_path / "p"), *words[3:], "--dry-run"])
    assert dry.exit_code == 3, dry.output
    assert not (tmp_path / "p").exists()
    full = CliRunner().invoke(app, [*words, "--dry-run"])
    assert isinstance(full.exception, ConfigError) and "is not empty" in str(full.exception)


def test_wrong_words():
    with pytest.raises(ConfigError, match="no format 'tailrac'") as wrong:
        convert.side("tailrac", "x", {})
    assert "did you mean 'tailrace'?" in str(wrong.value)
    with pytest.raises(ConfigError, match="has no option 'keys'") as wrong:
        convert.side("tailrace", "x", {"keys": "id"})
    assert "did you mean 'key'?" in str(wrong.value)


@pytest.mark.slow
def test_apply_command(csv, tmp_path):
    lake = tmp_path / "lake"
    words = [
        "apply",
        "--changes",
        str(csv),
        "--option",
        "key=id",
        "--option",
        f"columns={TYPES}",
        "--target",
        str(lake),
    ]
    reject = [*words, "--on-bad", "reject", "--json"]
    dry = CliRunner().invoke(app, [*reject, "--dry-run"])
    assert json.loads(dry.stdout)["tables"][0]["would do"] == "apply"
    assert not lake.exists()
    stopped = CliRunner().invoke(app, words)
    assert isinstance(stopped.exception, FormatError)
    assert "unknown operation Q" in str(stopped.exception)
    assert not [p.name for p in lake.iterdir() if not p.name.startswith("_")]  # no target: what it planned
    done = CliRunner().invoke(app, reject)
    assert done.exit_code == 3, done.output
    told = json.loads(done.stdout)
    assert (told["bad"], told["tables"][0]["up to"]) == (2, 5)
    assert told["rejects"].endswith("_rejects")


@pytest.mark.slow
def test_counts_are_exact_when_spark_does_not_tell_them(spark, csv, tmp_path, monkeypatch):
    kind = type(spark.range(1))
    observe = kind.observe

    def untold(df, seen, *what):
        observe(df, seen, *what)  # of rows that nobody asks for
        return df

    monkeypatch.setattr(kind, "observe", untold)
    report = convert.convert(spark, *sides(csv, tmp_path / "out"))
    assert report.as_dict()["tables"] == {"shop.item": {"rows": 7, "bad": 2, "lost": {}, "again": 0}}
    assert report.written == {"shop.item__ct": 7}
    assert spark.read.parquet(report.rejects).count() == 2
