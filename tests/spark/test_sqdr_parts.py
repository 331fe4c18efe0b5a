"""`tailrace apply` of an SQDR key log in parts: each subscription's changes go where its earlier ones went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.config.tables_file import load
from tailrace.errors import ApplyError, ConfigError, FormatError
from tailrace.formats import convert
from tailrace.lake import delta as lake
from tailrace.operate import vendor_apply

pytestmark = pytest.mark.spark

COLUMNS = "table_name,place,column_name,type,is_key,octet\nSHOP.ITEM,1,ID,int,true,false\nSHOP.ITEM,2,V,string,false,false\n"
Row = tuple[str, int, str, str | None, str | None]


def insert(subscription: str, number: int, row: int, value: str, table: str = "ITEM") -> Row:
    image = f'<Dest>"SHOP"."{table}"</Dest><row>ID="{row}" V="{value}"</row>'
    return (subscription, number, "I", None, image)


def delete(subscription: str, number: int, row: int) -> Row:
    return (subscription, number, "D", f'ID="{row}"', None)


def apply(spark: SparkSession, root: Path, part: list[Row], *, typed: bool = False, **more: Any) -> Any:
    """Applies these rows alone."""
    names = ("subscription_id", "change_row_counter", "change_row_type", "before_key", "after_image")
    place = root / "part"
    place.mkdir(exist_ok=True)
    lines = [json.dumps({"resync_state": 5, **dict(zip(names, row, strict=True))}) for row in part]
    (place / "ir_keylog.json").write_text("\n".join(lines) + "\n")
    if typed:
        (place / "tailrace_columns.csv").write_text(COLUMNS)
    given = {} if typed else {"key": "ID"}
    given |= more.pop("given", {})
    target = more.pop("target", str(root / "lake"))
    return vendor_apply.run(spark, str(place), "sqdr", given, target, **more)


def found(root: Path, table: str) -> list[dict[str, Any]]:
    return lake.read(f"{root}/lake/{table}").to_pylist()  # type: ignore[no-any-return]


def rows(root: Path) -> dict[str, list[tuple[str, str]]]:
    """The rows of each target."""
    names = sorted(p.name for p in (root / "lake").iterdir() if not p.name.startswith("_"))
    return {n.replace("~40~", "@"): sorted((str(r["ID"]), r["V"]) for r in found(root, n)) for n in names}


@pytest.mark.slow
def test_deletes_go_to_the_target_that_has_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    apply(spark, tmp_path, [insert("31", 1, 1, "a"), insert("31", 2, 2, "b")])
    apply(spark, tmp_path, [delete("31", 3, 1)])
    assert rows(tmp_path) == {"SHOP.ITEM": [("2", "b")]}


@pytest.mark.slow
def test_columns_that_no_row_of_a_part_has_stay(spark: SparkSession, tmp_path: Path) -> None:
    """Images leave out what they do not have, and only `tailrace_columns` says what there is."""
    apply(spark, tmp_path, [insert("31", 1, 1, "a"), insert("31", 2, 2, "b")])
    image = '<Dest>"SHOP"."ITEM"</Dest><row>ID="{}" W="{}"</row>'
    part = [
        ("31", 3, "U", 'ID="1"', image.format(1, "x")),
        ("31", 4, "U", 'ID="2"', image.format(9, "y")),
        ("31", 5, "I", None, image.format(3, "z")),
    ]
    apply(spark, tmp_path, part)
    assert sorted((r["ID"], r["V"], r["W"]) for r in found(tmp_path, "SHOP.ITEM")) == [
        ("1", "a", "x"), ("3", None, "z"), ("9", "b", "y"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_column_that_no_row_of_a_part_has_may_be_dropped(spark: SparkSession, tmp_path: Path) -> None:
    """Whether there is such a column, the first part tells."""
    file = tmp_path / "tables.yaml"
    file.write_text("tables: {SHOP.ITEM: {drop: [V]}}\n")
    tables = load(file)
    with pytest.raises(ConfigError, match=r"drop: SHOP\.ITEM has no column 'V'"):
        apply(
            spark,
            tmp_path,
            [("31", 1, "I", None, '<Dest>"SHOP"."ITEM"</Dest><row>ID="1"</row>')],
            tables=tables,
        )
    apply(spark, tmp_path, [insert("31", 1, 1, "a"), insert("31", 2, 2, "b")], tables=tables)
    apply(spark, tmp_path, [delete("31", 3, 1)], tables=tables)
    assert found(tmp_path, "SHOP.ITEM") == [{"ID": "2"}]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["strict", "soft_delete", "archive"])
def test_under_rules_too(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    ruling = vendor_apply.ruling(mode, {}, None, f"{tmp_path}/log/ir_keylog", "all")
    apply(spark, tmp_path, [insert("31", 1, 1, "a"), insert("31", 2, 2, "b")], ruling=ruling)
    apply(spark, tmp_path, [delete("31", 3, 1)], ruling=ruling)
    have = {
        (r["ID"], r["V"], r.get("header__change_oper", r.get("_deleted")))
        for r in found(tmp_path, "SHOP.ITEM")
    }
    end = "0" * 16 + "0000000000500000003"
    assert (
        have
        == {
            "strict": {("2", "b", None)},
            "soft_delete": {("1", "a", end), ("2", "b", None)},
            "archive": {("1", "a", "I"), ("2", "b", "I"), ("1", None, "D")},
        }[mode]
    )


@pytest.mark.slow
def test_a_part_of_truncates_alone_waits_for_what_says_its_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    gone = ("31", 2, "T", None, None)
    apply(spark, tmp_path, [insert("31", 1, 1, "a")])
    with pytest.raises(ApplyError, match=r"SHOP.ITEM: the columns and the key of the changes are unknown"):
        apply(spark, tmp_path, [gone])
    assert rows(tmp_path) == {"SHOP.ITEM": [("1", "a")]}
    apply(spark, tmp_path, [gone, insert("31", 3, 2, "b")])
    assert rows(tmp_path) == {"SHOP.ITEM": [("2", "b")]}
    done = apply(spark, tmp_path, [gone])
    assert "SHOP.ITEM is not applied: it has no columns but headers" in done["notes"]


@pytest.mark.slow
def test_a_table_that_had_a_name_before_it_was_declared_has_the_declared_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = [insert("31", 1, 1, "a", table="OLD")]
    apply(spark, tmp_path, old)
    given = {"subscriptions": {"31": "SHOP.OLD"}, "key": "ID"}
    part = tmp_path / "part"
    (part / "tailrace_columns.csv").write_text(COLUMNS)
    ct = convert.read(spark, convert.side("sqdr", str(part), given)).changes["SHOP.OLD"]
    assert dict(ct.df.dtypes)["ID"] == "string"  # nothing says that it is SHOP.ITEM
    (part / "ir_keylog.json").write_text((part / "ir_keylog.json").read_text().replace("OLD", "ITEM"))
    ct = convert.read(spark, convert.side("sqdr", str(part), given)).changes["SHOP.OLD"]
    assert dict(ct.df.dtypes)["ID"] == "int"


@pytest.mark.slow
def test_one_of_two_subscriptions_goes_on_alone(spark: SparkSession, tmp_path: Path) -> None:
    both = [insert("31", 1, 1, "a"), insert("32", 2, 1, "s")]
    apply(spark, tmp_path, both, typed=True)
    apply(spark, tmp_path, [insert("31", 3, 2, "b"), delete("31", 4, 1)], typed=True)
    assert rows(tmp_path) == {"SHOP.ITEM@31": [("2", "b")], "SHOP.ITEM@32": [("1", "s")]}


@pytest.mark.slow
def test_a_second_subscription_gets_a_target_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    apply(spark, tmp_path, [insert("31", 1, 1, "a")])
    apply(spark, tmp_path, [insert("32", 2, 1, "s")])
    done = apply(spark, tmp_path, [insert("31", 3, 2, "b"), delete("32", 4, 1)])
    assert rows(tmp_path) == {"SHOP.ITEM": [("1", "a"), ("2", "b")], "SHOP.ITEM@32": []}
    assert not [n for n in done["notes"] if "its id" in n]


@pytest.mark.slow
def test_a_call_that_was_killed_has_given_its_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has other rows, whose table has the same name."""

    def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(
            vendor_apply, "_record_unnamed", dies
        )  # the first thing that is done after the targets' commits
        apply(spark, tmp_path, [insert("31", 1, 1, "a")])
    apply(spark, tmp_path, [insert("32", 2, 1, "s")])
    assert rows(tmp_path) == {"SHOP.ITEM": [("1", "a")], "SHOP.ITEM@32": [("1", "s")]}


@pytest.mark.slow
def test_what_a_dry_run_sees_is_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    apply(spark, tmp_path, [insert("31", 1, 1, "a"), insert("32", 2, 1, "s")], dry_run=True)
    apply(spark, tmp_path, [insert("31", 1, 1, "a")])
    assert rows(tmp_path) == {"SHOP.ITEM": [("1", "a")]}


@pytest.mark.slow
def test_deletes_of_an_unknown_subscription(spark: SparkSession, tmp_path: Path) -> None:
    """At first there is no target that could have its rows; later one may be there, from an earlier version or
    under another subscription."""
    done = apply(spark, tmp_path, [delete("30", 1, 1), insert("31", 2, 1, "a")])
    assert done["notes"][0] == "30 is called by its id: its rows have no `<Dest>` with the name of its table"
    apply(spark, tmp_path, [delete("30", 3, 2)])
    with pytest.raises(
        ApplyError, match=r"33: its rows have no `<Dest>`(.|\n)*--option 'subscriptions=33=TABLE'"
    ):
        apply(spark, tmp_path, [delete("33", 4, 1)])
    assert not (tmp_path / "lake" / "33").exists()
    apply(spark, tmp_path, [delete("33", 5, 1)], given={"subscriptions": "33=SHOP.ITEM"})
    assert found(tmp_path, "SHOP.ITEM") == []
    with pytest.raises(FormatError, match=r"subscriptions 30, 34 cannot all be SHOP\.ITEM"):
        apply(spark, tmp_path, [delete("34", 6, 1)], given={"subscriptions": "30=SHOP.ITEM; 34=SHOP.ITEM"})
