"""Qlik change tables: the conformance suite, files with DFM, layouts, masks and bad rows."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tailrace import formats, mask
from tailrace.change import ChangeTable
from tailrace.errors import ConfigError
from tailrace.formats import checks
from tailrace.formats.base import FILE, RAW, WHY, Options, Tables
from tailrace.formats.qlik import control
from tailrace.formats.qlik import partitions as parts
from tailrace.formats.qlik.dfm import Dfm, DfmColumn, column, parse
from tailrace.formats.qlik.layout import outside
from tailrace.formats.qlik.loading import Count, completeness
from tailrace.formats.qlik.options import QlikOptions
from tailrace.testing.changes import COLUMNS, TABLE, Image, change_table, literal, reasons
from tailrace.testing.formats import HISTORIES, FormatConformance, full

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

QLIK = formats.get("qlik")
HEADS = (
    "header__change_seq string, header__change_oper string, header__change_mask binary, "
    "header__stream_position string, header__operation string, header__transaction_id string, "
    "header__timestamp timestamp"
)
WORDS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE", "B": "BEFOREIMAGE", "T": "TRUNCATE"}


def seq(number: int) -> str:
    return f"2026010112000012{number:019d}"


def row(number: int, oper: str, bits: list[int] | bytes, *values: Any) -> tuple[Any, ...]:
    """A row of a change table with the usual seven headers."""
    octets = bits if isinstance(bits, bytes) else mask.encode(bits)
    said = (f"pos:{number}", WORDS.get(oper, "?"), "0" * 31 + "A", None)
    return (seq(number), oper, bytearray(octets), *said, *values)


def images(ct: ChangeTable) -> list[tuple[Any, ...]]:
    """(change number, operation, names in the mask, values), in order."""
    names = ct.df.columns
    made = []
    for r in ct.df.collect():
        bits = r["header__change_mask"]
        marked = None if bits is None else [names[n] for n in mask.decode(bytes(bits))]
        made.append(
            (int(r["header__change_seq"][-6:]), r["header__change_oper"], marked, *(r[c] for c in ct.columns))
        )
    return sorted(made, key=repr)


class TestConformance(FormatConformance):
    format = QLIK

    def vendor(self, spark: SparkSession) -> dict[str, DataFrame]:
        from datetime import datetime, timezone

        at = datetime(2026, 1, 1, 11, 59, 59, tzinfo=timezone.utc)
        rows = [
            row(1, "I", [8, 9], 1, "a"),
            row(2, "B", [], 1, "a"),
            row(2, "U", [9], 1, None),
            row(3, "T", [], None, None),
            row(4, "D", [8], 1, None),
        ]
        part = "20260101T120000_20260101T130000"
        rows = [(*r[:6], at, part, *r[7:]) for r in rows]
        columns = f"{HEADS}, header__partition_name string, id int, name string"
        loaded = [(f"{n:016d}" + "0" * 19, at, n, f"n{n}") for n in (1, 2)]
        return {
            "dbo.item__ct": spark.createDataFrame(rows, columns),
            "dbo.item": spark.createDataFrame(
                loaded, "header__change_seq string, header__timestamp timestamp, id int, name string"
            ),
        }

    def vendor_options(self) -> Options:
        return QlikOptions(key="id")

    def hostile(self, spark: SparkSession) -> Iterator[tuple[str, Tables, str]]:
        def table(*rows: tuple[Any, ...]) -> Tables:
            return {"dbo.item__ct": spark.createDataFrame(list(rows), f"{HEADS}, id int, name string")}

        good = row(1, "I", [7, 8], 1, "a")
        yield "unknown code", table((*good[:1], "X", *good[2:])), "unknown operation X"
        yield "no code", table((*good[:1], None, *good[2:])), "no change_oper"
        yield "words differ", table((*good[:1], "D", *good[2:])), "operation INSERT but change_oper D"
        yield "mask too long", table(row(1, "I", [7, 9], 1, "a")), "change_mask longer than the columns"
        yield "mask far too long", table(row(1, "I", [7, 900], 1, "a")), "change_mask longer than the columns"
        yield "a header marked", table(row(1, "I", [2, 7], 1, "a")), "change_mask marks header columns"
        yield "short sequence", table(("12", *good[1:])), "change_seq is not 35 digits: 12"
        yield "letters", table((seq(1)[:-1] + "a", *good[1:])), "change_seq is not 35 digits: 2026"
        yield "a sign", table(("+" + seq(1)[1:], *good[1:])), "change_seq is not 35 digits: +026"
        yield "no sequence", table((None, *good[1:])), "no change_seq"
        yield "twice", table(good, good), "comes twice"
        yield "lone B", table(row(1, "B", [], 1, "a")), "before image without its update"
        text = HEADS.replace("binary", "string")
        odd = spark.createDataFrame(
            [(*good[:2], "0x", *good[3:], 1, "a")][:1], f"{text}, id int, name string, x int, y string"
        )
        yield "mask is no hex", {"dbo.item__ct": odd}, "header__change_mask is no binary"
        truncate = (*good[:1], "X", *good[2:4], "TRUNCATE", *good[5:])
        yield "another letter", table(truncate), "see the option truncate_code"


# -- masks


def test_headers_that_are_missing_move_the_bits(spark: SparkSession) -> None:
    rows = [(seq(1), "B", "", 1, "a"), (seq(1), "U", "0010", 1, None), (seq(2), "I", "18", 2, "b")]
    df = spark.createDataFrame(
        rows, "`C$_CHANGE_SEQ` string, `c$_oper` string, `c$_change_mask` string, id int, name string"
    )
    ct = QLIK.read({"dbo.item__CT": df}, QlikOptions(key="id")).changes["dbo.item"]
    assert reasons(ct) == []
    assert images(ct) == [
        (1, "B", [], 1, "a"),
        (1, "U", ["name"], 1, None),
        (2, "I", ["id", "name"], 2, "b"),
    ]
    assert [r["header__operation"] for r in ct.df.orderBy("header__change_seq").collect()][-1] == "INSERT"
    options = QlikOptions(prefix="c$_", headers="change_mask", key="id")
    again = QLIK.write({"dbo.item": ct}, options)["dbo.item__ct"]
    assert again.columns == ["c$_change_seq", "c$_change_oper", "c$_change_mask", "id", "name"]
    assert sorted(bytes(r[2]).hex() for r in again.collect()) == ["", "10", "18"]


def test_the_byte_order_is_found_by_rows(spark: SparkSession) -> None:
    columns = f"{HEADS}, id int, name string, note string"
    pair = [row(2, "B", b"", 1, "a", None), row(2, "U", mask.encode([8, 9])[::-1] + b"\0\0", 1, "b", "n")]
    inserted = [row(1, "I", mask.encode([7, 8, 9])[::-1], 1, "a", None)]
    for rows in (inserted + pair, pair):
        read = QLIK.read({"dbo.item__ct": spark.createDataFrame(rows, columns)}, QlikOptions(key="id"))
        ct = read.changes["dbo.item"]
        assert reasons(ct) == []
        assert read.notes == ("dbo.item: masks have their least significant byte first (found by rows)",)
        assert ("U", ["name", "note"]) in [i[1:3] for i in images(ct)]
    little = QLIK.write({"dbo.item": ct}, QlikOptions(mask_order="little", mask_bytes=4))["dbo.item__ct"]
    assert sorted(bytes(r[2]).hex() for r in little.collect()) == ["00000000", "00030000"]


def test_masks_against_a_model(spark: SparkSession) -> None:
    rng = random.Random(5)
    octets = [rng.randbytes(rng.randint(0, 5)) + bytes(rng.randint(0, 12)) for _ in range(300)]
    df = spark.createDataFrame([(bytearray(o),) for o in octets], "m binary")
    width, allowed = 20, range(7, 20)
    asked = [
        F.coalesce(c, F.lit(False))
        for k in (False, True)
        for c, _ in outside(F.col("m"), width, allowed, "m", little=k)
    ]
    for r in df.select("m", *[c.alias(f"c{i}") for i, c in enumerate(asked)]).collect():
        told = []
        for raw in (bytes(r[0]), bytes(r[0])[::-1]):
            marked = mask.decode(raw)
            told += [any(n >= width for n in marked), any(n < 7 for n in marked)]
        assert list(r[1:]) == told, bytes(r[0]).hex()


def test_queue_masks_count_data_columns(spark: SparkSession) -> None:
    columns = f"{HEADS}, id int, name string, note string, header__column_mask binary"
    rows = [(*row(1, "U", b"\x02", 1, "b", None), bytearray(b"\x03"))]
    options = QlikOptions(masks="queue", key="id")
    ct = QLIK.read({"dbo.item__ct": spark.createDataFrame(rows, columns)}, options).changes["dbo.item"]
    assert reasons(ct) == []
    (found,) = literal(ct, headers=[])
    assert found[2:4] == (("name",), ("id", "name"))


def test_columns_named_like_headers_and_headers_of_nobody(spark: SparkSession) -> None:
    heads = HEADS.replace("header__stream_position string", "header__User string")
    columns = f"{heads}, timestamp string, operation string"
    df = spark.createDataFrame([row(1, "U", [3, 8], "a", None), row(2, "U", [7], "b", None)], columns)
    options = QlikOptions(key="timestamp", headers="change_mask,operation")
    ct = QLIK.read({"item": df}, options).changes["item"]
    assert reasons(ct) == []
    assert [i[2] for i in images(ct)] == [["header__native_user", "operation"], ["timestamp"]]
    again = QLIK.write({"item": ct}, options)["item__ct"]
    assert again.columns == [*(f"header__{h}" for h in ("change_seq", "change_oper", "change_mask", "operation")),
                             "header__User", "timestamp", "operation"]  # fmt: skip
    assert [mask.decode(bytes(r[2])) for r in again.orderBy("header__change_seq").collect()] == [[4, 6], [5]]
    assert [r["header__User"] for r in again.collect()] == ["pos:1", "pos:2"]


# -- files


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


def test_layouts_and_full_load_as_one_table(spark: SparkSession, replicated: Path) -> None:
    options = QlikOptions()
    read = QLIK.read(QLIK.load(spark, str(replicated), options), options)
    ct = read.changes["dbo.item"]
    assert reasons(ct) == []
    assert (ct.key, ct.columns) == (["id"], ["id", "price", "name", "old"])
    kinds = [ct.df.schema[c].dataType.simpleString() for c in ct.columns]
    assert kinds == ["bigint", "decimal(10,2)", "string", "date"]
    assert read.notes == ("dbo.item__ct: 2 layouts were put into one",)
    found = literal(ct, headers=["native_oper", "timestamp"])
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
    rows = {r["header__change_seq"][-1]: r for r in ct.df.collect()}
    assert rows["1"][WHY] is None
    assert rows["2"][WHY] == "id is no int"
    assert rows["3"][WHY] == "the line has not 6 values"
    assert rows["3"][RAW] == lines[2]
    assert rows["4"][WHY] == "header__timestamp is no timestamp; header__change_mask is no binary"
    assert rows["1"][FILE].endswith("dbo.item__ct/20260101-120000120.csv.gz")
    assert read.notes == ("dbo.item__ct: dbo.item__ct/20260101-120000120.csv.gz: its DFM counts 2 errors",)
    found = completeness(spark, str(tmp_path), QlikOptions())
    assert found == [Count("dbo.item__ct/20260101-120000120.csv.gz", 7, 4)]


def test_json_lines(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "dbo.item__ct"
    folder.mkdir()
    columns = [*header_columns(), DfmColumn(5, "id", "INT4", key=1), DfmColumn(6, "n", "NUMERIC", 0, 30, 10)]
    line = {"header__change_seq": seq(1), "header__change_oper": "I", "header__change_mask": "30", "id": 1}
    exact = json.dumps(line)[:-1] + ', "n": 12345678901234567890.0123456789}'
    text = [exact, json.dumps({**line, "header__change_seq": seq(2), "n": "x"}), "{no json"]
    (folder / "20260101-120000120.json").write_text("\n".join(text))
    (folder / "20260101-120000120.dfm").write_text(Dfm("x.json", tuple(columns), format="json").to_json())
    ct = QLIK.read(QLIK.load(spark, str(tmp_path), QlikOptions()), QlikOptions()).changes["dbo.item"]
    rows = {r["header__change_seq"]: r for r in ct.df.collect()}
    assert (rows[seq(1)]["n"], rows[seq(1)][WHY]) == (Decimal("12345678901234567890.0123456789"), None)
    assert rows[seq(2)][WHY] == "no JSON, or a number that is none"
    assert rows[None][RAW] == "{no json"
    assert "no JSON" in rows[None][WHY]


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


def test_settings_of_the_store_changes_page(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path)
    history = HISTORIES["pairs"]
    first = {TABLE: change_table(spark, history)}
    wide = {
        TABLE: change_table(
            spark, [Image(9, "I", {**full(9), "more": "m"})], columns={**COLUMNS, "more": "string"}
        )
    }

    def saved(changes: dict[str, ChangeTable], **said: Any) -> ChangeTable:
        options = QlikOptions(suffix="_chg", gzip=True, **said)
        QLIK.save(QLIK.write(changes, options), place, "csv", options)
        read = QLIK.read(QLIK.load(spark, place, options), options)
        assert completeness(spark, place, options) == []
        return read.changes[TABLE]

    ct = saved(first, before_images=False, headers="change_mask,timestamp", prefix="h_")
    assert [f.name for f in tmp_path.iterdir()] == ["shop.item_chg"]
    assert [r[1] for r in literal(ct)] == ["I", "U", "U"]
    metas = [parse(f.read_text(), where=f.name) for f in (tmp_path / "shop.item_chg").glob("*.dfm")]
    assert sum(m.records or 0 for m in metas) == 3
    assert min(m.first for m in metas if m.first) == "2026-01-01T12:00:01.000"
    meta = metas[0]
    assert (meta.content, meta.format, meta.extension) == ("changes", "delimited", "csv.gz")
    assert [c.name for c in meta.columns[:5]] == [
        "h_change_seq",
        "h_change_oper",
        "h_change_mask",
        "h_timestamp",
        "id",
    ]
    assert [(c.name, c.key) for c in meta.columns if c.key] == [("id", 1)]
    ct = saved(wide, start="keep", headers="change_mask,timestamp", prefix="h_")
    assert "more" in ct.columns
    assert len(literal(ct)) == 4
    # The table keeps its columns when DDL is ignored; without its changes it is still that table.
    saved(first)
    ct = saved(wide, start="keep", ddl="ignore")
    assert (ct.columns, len(literal(ct))) == (list(COLUMNS), 6)
    ct = saved(wide, start="truncate", ddl="ignore")
    assert [r[1:3] for r in literal(ct)] == [("I", tuple(COLUMNS))]
    assert saved(wide).columns == [*COLUMNS, "more"]


def test_partitions(spark: SparkSession, tmp_path: Path) -> None:
    changes = {
        TABLE: change_table(spark, [Image(n, "I", full(n), transaction=n * 1800) for n in (1, 2, 3, 4)])
    }
    options = QlikOptions(partition_minutes=60, reference="ref")
    QLIK.save(QLIK.write(changes, options), str(tmp_path), "parquet", options)
    folders = sorted(f.name for f in (tmp_path / "shop.item__ct").iterdir())
    assert folders == [f"20260101T{h}0000_20260101T{h + 1}0000" for h in (12, 13, 14)]
    named = (tmp_path / "ref00000001.csv").read_text().splitlines()
    assert {n.split("/")[-2] for n in named if n.startswith("shop.item__ct,")} == set(folders)
    tables = QLIK.load(spark, str(tmp_path), QlikOptions(reference=str(tmp_path / "ref00000001.csv")))
    listed = tables[parts.TABLE].select("PARTITION_NAME", "TABLE_NAME").orderBy("PARTITION_NAME")
    assert [tuple(r) for r in listed.collect()] == [(f, "item") for f in folders[:2]]
    read = QLIK.read(tables, QlikOptions(partitions="closed"))
    ct = read.changes[TABLE]
    assert [r["id"] for r in ct.df.orderBy("id").collect()] == [1, 2, 3]
    assert [r["id"] for r in read.pending["shop.item__ct"].collect()] == [4]
    assert {r["header__partition_name"] for r in ct.df.collect()} == set(folders[:2])
    whole = parts.states(tables["shop.item__ct"], "header__partition_name", folders[:2])
    assert [r["closed"] for r in whole.orderBy("partition_name").collect()] == [True, True, False]
    with pytest.raises(ConfigError, match="needs the table attrep_cdc_partitions"):
        QLIK.read({"shop.item__ct": tables["shop.item__ct"]}, QlikOptions(partitions="closed"))


def test_control_tables(spark: SparkSession, tmp_path: Path) -> None:
    details = {
        "owner": "dbo", "table": "item", "tableNewName": None, "version": 2,
        "columns": {"price": {"columnNewName": None, "action": "ADD", "type": "NUMERIC", "length": 0, "precision": 10,
                              "scale": 2, "primaryKeyPosition": 0, "nullable": True, "ordinal": 2}},
    }  # fmt: skip
    values: dict[str, list[str]] = {
        "attrep_apply_exceptions": ["t", "dbo", "item", "2026-01-01 00:00:00.123", "INSERT", "dup"],
        "attrep_status": ["s", "t", "CHANGE PROCESSING", "2026-01-01 00:00:00", "5", "0", "7", "p", "2026-01-01 00:00:00", "q", "2026-01-01 00:00:00", "1970-01-01 00:00:00"],
        "attrep_suspended_tables": ["s", "t", "dbo", "item", "why", "2026-01-01 00:00:00"],
        "attrep_history": ["s", "t", "FULL LOAD", "2026-01-01 00:05:00", "5", "0", "100", "1"],
        "attrep_ddl_history": ["s", "t", "dbo", "item", seq(3), "2026-01-01 00:00:00", "2", "ALTER_TABLE", json.dumps(details)],
        "attrep_cdc_partitions": ["s", "t", "20260101T120000_20260101T130000", "2026-01-01 12:00:00", "2026-01-01 13:00:00", "dbo", "item"],
    }  # fmt: skip
    raw = {
        n: spark.createDataFrame([v], [c.name.lower() for c in control.TABLES[n].columns])
        for n, v in values.items()
    }
    made = {n: control.written(n, df) for n, df in raw.items()}
    QLIK.save(made, str(tmp_path), "json", QlikOptions())
    tables = QLIK.load(spark, str(tmp_path), QlikOptions())
    for name, df in made.items():
        assert df.schema == control.written(name, tables[name]).schema
        assert control.written(name, tables[name]).collect() == df.collect(), name
        assert QLIK.knows(df.columns) == 0.9
    (ddl,) = control.ddl_changes(tables["attrep_ddl_history"]).collect()
    assert (ddl["COLUMN_NAME"], ddl["action"], ddl["precision"], ddl["CHANGE_SEQ"]) == (
        "price",
        "ADD",
        10,
        seq(3),
    )
    bad = control.conformed(
        "attrep_status", raw["attrep_status"].withColumn("pending_changes", F.lit("many"))
    )
    assert bad.collect()[0][WHY] == "pending_changes is no bigint"
    assert QLIK.read(tables, QlikOptions()).changes == {}
