"""Delta targets that somebody else made: with partitions, NOT NULL, CHECKs, column mapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tailrace.apply.rules import RulesApplier
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError, UnsupportedError
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.multi_source import TargetLocation
from tailrace.testing.images import Image, change_table, merge_images

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ID, P, V = (
    Column(n, k, t, t, t, key=n == "id")
    for k, (n, t) in enumerate([("id", "int"), ("p", "string"), ("v", "string")], 1)
)
KEYED = Relation(1, "s", "t", "f", (ID, P, V))
BAG = KEYED.with_columns([replace(ID, key=False), P, V])
ROWS = {"id": pa.array([1, 2], pa.int32()), "p": ["a", "b"], "v": ["x", "y"]}
COPIES = {"id": pa.array([1, 2, 2], pa.int32()), "p": ["a", "b", "b"], "v": ["x", "y", "y"]}


def target_of(spark: SparkSession, root: Path, rows: dict[str, Any] = ROWS, **made: Any) -> DeltaTarget:
    target = DeltaTarget(spark, str(root), app_id="x")
    write_deltalake(target.path("s.t"), pa.table(rows), **made)
    return target


def rows(target: DeltaTarget) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["p"], r["v"]) for r in lake.read(target.path("s.t")).to_pylist())


PLANS: dict[str, tuple[Relation, Sequence[Image], list[tuple[Any, ...]]]] = {
    "a new row": (KEYED, [(1, "I", {"id": 3, "p": "a", "v": "z"})], [(1, "a", "x"), (2, "b", "y"), (3, "a", "z")]),
    "a change": (KEYED, [(1, "U", {"id": 1, "p": "b", "v": "X"}), (2, "D", {"id": 2})], [(1, "b", "X")]),
    "a new key without a column": (KEYED, [(1, "B", {"id": 1}), (1, "U", {"id": 9, "v": "z"})], [(2, "b", "y"), (9, "a", "z")]),
    "a truncate": (KEYED, [(1, "T", {}), (2, "I", {"id": 3, "p": "a", "v": "n"})], [(3, "a", "n")]),
    "a copy": (BAG, [(1, "I", {"id": 1, "p": "a", "v": "x"})], [(1, "a", "x"), (1, "a", "x"), (2, "b", "y")]),
    "a row that goes": (BAG, [(1, "D", {"id": 1, "p": "a", "v": "x"})], [(2, "b", "y")]),
    "a truncate of copies": (BAG, [(1, "T", {}), (2, "I", {"id": 3, "p": "a", "v": "n"})], [(3, "a", "n")]),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANS)
def test_partitions_are_kept(spark: SparkSession, tmp_path: Path, what: str) -> None:
    relation, images, want = PLANS[what]
    target = target_of(spark, tmp_path, partition_by=["p"])
    merge_images(spark, target, relation, images)
    assert rows(target) == want
    assert DeltaTable(target.path("s.t")).metadata().partition_columns == ["p"]
    assert target.progress("s.t") == images[-1][0]


def test_outcomes_are_right_where_the_key_is_a_partition(spark: SparkSession, tmp_path: Path) -> None:
    target = target_of(spark, tmp_path, partition_by=["p"])
    relation = KEYED.with_columns([ID, replace(P, key=True), V])
    images: list[Image] = [(1, "U", {"id": 1, "p": "a", "v": "X"}), (2, "D", {"id": 2, "p": "b"})]
    changes = replace(change_table(spark, relation, images), name="s.t")
    under = RulesApplier(target, Rules.of("strict", None), root=str(tmp_path), task="x")
    assert VendorApplier(under, str(tmp_path)).apply(changes).conflicts == {}
    assert rows(target) == [(1, "a", "X")]


def test_a_layout_that_would_need_new_files_is_refused_with_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = target_of(spark, tmp_path, partition_by=["p"])
    wider = KEYED.with_columns([replace(ID, type="bigint"), P, V])
    with pytest.raises(UnsupportedError, match="partitioned by p"):
        target.alter("s.t", KEYED, wider)
    with pytest.raises(UnsupportedError, match="partitioned by p"):
        target.load(KEYED, spark.createDataFrame([(1, "a", "x")], "id int, p string, v string"), 3)
    assert rows(target) == [(1, "a", "x"), (2, "b", "y")]


# Neither kind of demand lets tailrace write the files: Spark does, which keeps both.
@pytest.mark.parametrize(
    ("what", "demand"),
    [
        ("a truncate", "CHECK"), ("a copy", "NOT NULL"), ("a row that goes", "CHECK"),
        ("a truncate of copies", "NOT NULL"),
    ],
)  # fmt: skip
def test_what_a_table_demands_is_kept_by_every_plan(
    spark: SparkSession, tmp_path: Path, what: str, demand: str
) -> None:
    relation, images, want = PLANS[what]
    schema = pa.schema(
        [("id", pa.int32()), ("p", pa.string()), pa.field("v", pa.string(), demand == "CHECK")]
    )
    target = DeltaTarget(spark, str(tmp_path), app_id="x")
    write_deltalake(target.path("s.t"), pa.table(ROWS, schema))
    if demand == "CHECK":
        DeltaTable(target.path("s.t")).alter.add_constraint({"c": "v <> 'bad'"})
    merge_images(spark, target, relation, images)
    assert rows(target) == want
    bad = None if demand == "NOT NULL" else "bad"
    for oper in ("I", "T"):
        more: list[Image] = [(8, "T", {})] if oper == "T" else []
        more.append((9, "I", {"id": 7, "p": "a", "v": bad}))
        with pytest.raises(ApplyError, match=r"NOT_NULL|CHECK"):
            merge_images(spark, target, relation, more)
        assert rows(target) == want
    kept = {f.name: f.nullable for f in DeltaTable(target.path("s.t")).schema().fields}
    assert kept == {"id": True, "p": True, "v": demand == "CHECK"}


def test_a_wider_column_still_may_not_be_null(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("p", pa.string()), ("v", pa.string())])
    target = DeltaTarget(spark, str(tmp_path), app_id="x")
    write_deltalake(target.path("s.t"), pa.table(ROWS, schema))
    target.alter("s.t", KEYED, KEYED.with_columns([replace(ID, type="bigint"), replace(V, name="word"), P]))
    found = DeltaTable(target.path("s.t")).schema().fields
    assert [(f.name, f.nullable) for f in found] == [("id", False), ("word", True), ("p", True)]


def test_column_mapping_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    target = DeltaTarget(spark, str(tmp_path), app_id="x")
    path = target.path("s.t")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id int, p string, v string) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 'a', 'x')")
    for images in PLANS["a new row"][1], PLANS["a truncate"][1]:
        with pytest.raises(UnsupportedError, match="column mapping"):
            merge_images(spark, target, KEYED, images)
    with pytest.raises(UnsupportedError, match="column mapping"):
        target.alter("s.t", KEYED, KEYED.with_columns([replace(ID, type="bigint"), P, V]))
    with pytest.raises(UnsupportedError, match="column mapping"):
        target.load(KEYED, spark.createDataFrame([(1, "a", "x")], "id int, p string, v string"), 3)
    assert [tuple(r) for r in spark.read.format("delta").load(path).collect()] == [(1, "a", "x")]


@pytest.mark.parametrize(
    "last",
    [
        [(3, "D", {"id": 1, "p": "?", "v": "1"})],
        [(3, "B", {"id": 1, "p": "?"}), (3, "U", {"id": 1, "v": "2"})],
    ],
)
def test_old_images_may_have_values_that_the_target_cannot_hold(
    spark: SparkSession, tmp_path: Path, last: list[Image]
) -> None:
    """Nobody writes them, whatever the target demands of other columns."""
    schema = pa.schema([("id", pa.int32()), ("p", pa.int32()), pa.field("v", pa.string(), nullable=False)])
    target = DeltaTarget(spark, str(tmp_path), app_id="x")
    write_deltalake(target.path("s.t"), pa.table({"id": [], "p": [], "v": []}, schema))
    images: list[Image] = [(1, "I", {"id": 1, "p": "7", "v": "0"}), (2, "U", {"id": 1, "v": "1"}), *last]
    rules = Rules.of("upsert", {"data_error": "log"})
    under = RulesApplier(target, rules, root=str(tmp_path), task="x")
    done = VendorApplier(under, str(tmp_path)).apply(replace(change_table(spark, KEYED, images), name="s.t"))
    assert done.conflicts == {}
    assert rows(target) == ([] if last[0][1] == "D" else [(1, 7, "2")])


def test_a_truncate_of_one_source_of_a_bag_takes_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    def place(table: str) -> TargetLocation:
        return TargetLocation("s.all", {"p": table.partition(".")[0]})

    target = DeltaTarget(spark, str(tmp_path), app_id="x", locations=place)
    for site in ("eu", "us"):
        row = {"id": 1, "p": site, "v": "x"}
        images: list[Image] = [(1, "I", row), (2, "I", row)]
        merge_images(spark, target, replace(BAG, schema=site), images)
    cut: list[Image] = [(3, "T", {}), (4, "I", {"id": 1, "p": "us", "v": "x"})]
    merge_images(spark, target, replace(BAG, schema="us"), cut)
    found = sorted((r["id"], r["p"], r["v"]) for r in lake.read(target.path("us.t")).to_pylist())
    assert found == [(1, "eu", "x"), (1, "eu", "x"), (1, "us", "x")]


@pytest.mark.parametrize("keyed", [True, False])
def test_the_key_log_has_old_keys_of_a_column_that_the_target_has_in_another_type(
    spark: SparkSession, tmp_path: Path, keyed: bool
) -> None:
    target = DeltaTarget(spark, str(tmp_path / "lake"), app_id="x")
    schema = pa.schema([("id", pa.int32()), ("v", pa.int32())])
    DeltaTable.create(target.path("s.t"), schema)
    relation = KEYED.with_columns([replace(ID, type="string", key=keyed), replace(V, type="int")])
    images: list[Image] = [
        (1, "I", {"id": "7", "v": 1}), (2, "B", {"id": "7", "v": 1}), (2, "U", {"id": "8", "v": 1}),
    ]  # fmt: skip
    changes = replace(change_table(spark, relation, images), name="s.t", key=["id"] if keyed else [])
    log = KeyLog(str(tmp_path / "log"), app_id="x", run_id="1")
    rules = Rules.of("upsert", {"data_error": "log"})
    under = RulesApplier(target, rules, root=str(tmp_path), task="x", keylog=log)
    assert VendorApplier(under, str(tmp_path)).apply(changes).conflicts == {}
    assert lake.read(target.path("s.t")).to_pylist() == [{"id": 8, "v": 1}]
    logged = sorted((r["keylog_sort"], r["before_key"], r["after_key"]) for r in lake.read(log.path).to_pylist()
                    if r["before_key"])  # fmt: skip
    whole = "" if keyed else ' v="1"'
    assert [row[1:] for row in logged] == [(f'id="7"{whole}', f'id="8"{whole}')]
