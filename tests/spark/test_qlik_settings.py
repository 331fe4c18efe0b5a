"""Qlik's settings of the Store Changes page, partitions and control tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from tailrace.errors import ConfigError
from tailrace.formats.base import WHY
from tailrace.formats.qlik import control
from tailrace.formats.qlik import partitions as parts
from tailrace.formats.qlik.dfm import parse
from tailrace.formats.qlik.file_reader import completeness
from tailrace.formats.qlik.options import QlikOptions
from tailrace.model.change import ChangeTable
from tailrace.testing.changes import COLUMNS, TABLE, Image, change_table, comparable_rows
from tailrace.testing.formats import HISTORIES, full

from .test_format_qlik import QLIK, seq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
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
    assert [r[1] for r in comparable_rows(ct)] == ["I", "U", "U"]
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
    assert len(comparable_rows(ct)) == 4
    # The table keeps its columns when DDL is ignored; without its changes it is still that table.
    saved(first)
    ct = saved(wide, start="keep", ddl="ignore")
    assert (ct.columns, len(comparable_rows(ct))) == (list(COLUMNS), 6)
    ct = saved(wide, start="truncate", ddl="ignore")
    assert [r[1:3] for r in comparable_rows(ct)] == [("I", tuple(COLUMNS))]
    assert saved(wide).columns == [*COLUMNS, "more"]


@pytest.mark.slow
def test_delta_tables_are_kept_emptied_or_replaced_whatever_their_columns_are_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    def saved(number: int, *columns: str, **said: Any) -> tuple[list[str], list[int]]:
        kinds = {"id": "int", **dict.fromkeys(columns, "string")}
        image = Image(number, "I", {"id": number, **dict.fromkeys(columns, "x")})
        options = QlikOptions(**said)
        changes = {TABLE: change_table(spark, [image], columns=kinds)}
        QLIK.save(QLIK.write(changes, options), str(tmp_path), "delta", options)
        found = spark.read.format("delta").load(str(tmp_path / f"{TABLE}__ct"))
        mine = [c for c in found.columns if not c.startswith("header__")]
        return mine, sorted(r["id"] for r in found.select("id").collect())

    assert saved(1, "a b") == (["id", "a b"], [1])
    assert saved(2, "a b", "c;d", start="keep") == (["id", "a b", "c;d"], [1, 2])
    assert saved(3, "(e)", start="keep", ddl="ignore") == (["id", "a b", "c;d"], [1, 2, 3])
    assert saved(4, "a b", start="truncate") == (["id", "a b", "c;d"], [4])
    assert saved(5, "f=g", start="drop") == (["id", "f=g"], [5])
    place = str(tmp_path / f"{TABLE}__ct")
    before = DeltaTable(place).version()
    assert saved(6, "f=g", start="drop") == (["id", "f=g"], [6])
    assert DeltaTable(place).version() == before + 1  # of the same layout, it is never empty in between


@pytest.mark.slow
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


@pytest.mark.slow
def test_partitions_with_odd_names(spark: SparkSession, tmp_path: Path) -> None:
    names = ["20260101T120000_20260101T130000", "a:b", "x/y", "k=1", "50%", "a%3Ab", "_z", "..", "é ü"]
    rows = [(seq(n), "I", name, str(n)) for n, name in enumerate(names)]
    heads = ["header__change_seq", "header__change_oper", "header__partition_name"]
    df = spark.createDataFrame(rows, [*heads, "id"]).coalesce(1)
    QLIK.save({"shop.item__ct": df}, str(tmp_path / "out"), "parquet", QlikOptions())
    assert [f.name for f in tmp_path.iterdir()] == ["out"]
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["shop.item__ct"]
    back = QLIK.load(spark, str(tmp_path / "out"), QlikOptions())["shop.item__ct"]
    assert {(r["header__partition_name"], r["id"]) for r in back.collect()} == {
        (name, str(n)) for n, name in enumerate(names)
    }
    assert completeness(spark, str(tmp_path / "out" / ".." / "out"), QlikOptions()) == []


@pytest.mark.slow
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
    assert bad.collect()[0][WHY] == "pending_changes is not valid as bigint"
    assert QLIK.read(tables, QlikOptions()).changes == {}
