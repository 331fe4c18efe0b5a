"""`tailrace apply` to a vendor's whole folder: what is no table's change makes no target, stops nothing, and is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.tables_file import TablesFile
from tailrace.errors import UnsupportedError
from tailrace.operate import vendor_apply as incoming

from .literal_tables import rows_at

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples"


def apply(spark, tmp_path, vendor: str, **given: str):
    tables = str(EXAMPLES / vendor / "tables")
    return incoming.run(spark, tables, vendor, given, str(tmp_path), fail=False)


@pytest.mark.slow
def test_openedge_with_a_table_of_level_0(spark, tmp_path):
    done = apply(spark, tmp_path, "openedge", arrays="columns")
    assert [t["table"] for t in done["tables"]] == ["PUB.Item"]
    notes = "\n".join(done["notes"])
    assert (
        "PUB.Till is not applied: captured at level 0: changed rows are known, but not their values" in notes
    )
    assert "_Cdc-Change-Tracking: 1 rows change nothing: operation 12" in notes
    rows = rows_at(spark, str(tmp_path / "PUB.Item"))
    assert "Tags1" in rows.columns
    assert not (tmp_path / "_pending").exists()


@pytest.mark.slow
def test_soliddb_without_its_own_records(spark, tmp_path):
    done = apply(spark, tmp_path, "soliddb", keys="SHOP.ITEM=ID")
    assert [t["table"] for t in done["tables"]] == ["SHOP.ITEM"]
    assert not list(tmp_path.glob("_SYSTEM*"))
    assert any(n.startswith("_SYSTEM.SYS_LOG is not applied") for n in done["notes"])


@pytest.mark.slow
def test_a_table_without_columns(spark, tmp_path):
    heads, lines = "header__change_seq,header__change_oper", [f"2026110208100000{n:019d},I" for n in (1, 2)]
    for table, name, more in (("shop.bare", "", ("", "")), ("shop.item", ",id", (",1", ",2"))):
        file = tmp_path / "changes" / f"{table}__ct" / "20261102-081000000.csv"
        file.parent.mkdir(parents=True)
        file.write_text("\n".join([heads + name, *map("".join, zip(lines, more, strict=True))]) + "\n")
    done = incoming.run(spark, str(tmp_path / "changes"), "qlik", {}, str(tmp_path / "lake"))
    assert [t["table"] for t in done["tables"]] == ["shop.item"]
    assert "shop.bare is not applied: it has no columns but headers" in done["notes"]
    rows = rows_at(spark, str(tmp_path / "lake" / "shop.item"))
    assert sorted(r["id"] for r in rows.collect()) == ["1", "2"]
    assert not (tmp_path / "lake" / "shop.bare").exists()


@pytest.mark.slow
def test_types_that_no_target_has_are_named_before_anything_is_written(spark, tmp_path):
    row = "'0' || repeat('0', 34) as header__change_seq, 'I' as header__change_oper, 1 as id, map('a', 1) as odd"
    spark.sql(f"select {row}").write.parquet(str(tmp_path / "changes" / "shop.item__ct"))
    with pytest.raises(UnsupportedError, match=r"shop\.item: column odd is map<string,int>") as told:
        incoming.run(spark, str(tmp_path / "changes"), "tailrace", {"key": "id"}, str(tmp_path / "lake"))
    assert "--tables" in str(told.value)
    assert not (tmp_path / "lake").exists()


@pytest.mark.slow
def test_a_table_without_schema_has_one_name(spark, tmp_path):
    def apply(**more):
        return incoming.run(spark, str(changes), "tailrace", {}, str(lake), **more)["tables"]

    changes, lake = tmp_path / "changes", tmp_path / "lake"
    (changes / "item__ct").mkdir(parents=True)
    lines = [
        "header__change_seq,header__change_oper,id",
        *(f"2026110208100000{n:019d},I,{n}" for n in (1, 2)),
    ]
    (changes / "item__ct" / "20261102-081000000.csv").write_text("\n".join(lines) + "\n")
    given = {"dry_run": True, "tables": TablesFile.model_validate({"tables": {"item": {"where": "id > 1"}}})}
    assert [(t["table"], t["progress"], t["would do"]) for t in apply(**given)] == [("item", None, "apply")]
    assert [(t["table"], t["progress"], t["inserted"]) for t in apply()] == [("item", None, 2)]
    assert [p.name for p in lake.iterdir() if not p.name.startswith("_")] == ["item"]
    assert [(t["progress"], t["would do"]) for t in apply(dry_run=True)] == [(2, "nothing: already applied")]
