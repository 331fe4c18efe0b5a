"""Layout changes that names alone do not tell, values in new types, and names that need care."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tailrace.apply.reading import read_changes
from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.errors import ApplyError
from tailrace.lake import delta as lake
from tailrace.model import sequence
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeNumber, ChangeRange
from tailrace.model.types import schema_of
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.images import Image, merge_images

from .literal_tables import rows_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ID = Column("id", 1, "integer", "int4", "int", key=True)
A = Column("a", 2, "integer", "int4", "int")
B = Column("b", 3, "integer", "int4", "int")


def relation(*columns: Column) -> Relation:
    return Relation(1, "s", "t", "d", columns)


def target_of(spark: SparkSession, tmp_path: Path, start: Relation, *rows: Image) -> DeltaTarget:
    target = DeltaTarget(spark, str(tmp_path), app_id="x")
    merge_images(spark, target, start, rows)
    return target


def held(spark: SparkSession, target: DeltaTarget, *names: str) -> list[tuple[Any, ...]]:
    df = rows_at(spark, target.path("s.t"))
    assert sorted(df.columns) == sorted(names)
    return sorted(tuple(r[n] for n in names) for r in df.collect())


@pytest.mark.slow
def test_exchanged_names_are_exchanged_once(spark: SparkSession, tmp_path: Path) -> None:
    start = relation(ID, A, B)
    after = relation(ID, replace(A, name="b"), replace(B, name="a"))
    target = target_of(spark, tmp_path, start, (1, "I", {"id": 1, "a": 10, "b": 20}))
    for _ in range(2):
        target.alter("s.t", start, after)
        assert held(spark, target, "id", "a", "b") == [(1, 20, 10)]
    target.alter("s.t", after, start)
    assert held(spark, target, "id", "a", "b") == [(1, 10, 20)]
    assert target.progress("s.t") == 1


@pytest.mark.parametrize("mapped", [False, True])
def test_names_that_were_exchanged_before_a_baseline_are_exchanged_after_it_too(
    spark: SparkSession, tmp_path: Path, mapped: bool
) -> None:
    start = relation(ID, A, B)
    after = relation(ID, replace(A, name="b"), replace(B, name="a"))
    target = target_of(spark, tmp_path, start, (1, "I", {"id": 1, "a": 10, "b": 20}))
    target.alter("s.t", start, after)
    # The table is made again at the source: the same layouts, and a new baseline between them.
    if mapped:
        target.load(start, spark.createDataFrame([(2, 30, 40)], "id int, a int, b int"), 5)
    else:
        landing = DeltaLanding(target.path("s.t"), "x")
        part = landing.part(start)
        part.write(pa.table({"id": [2], "a": [30], "b": [40]}, schema_of(start.columns)))
        added = part.close()
        assert added is not None
        landing.commit(start, [added], ChangeNumber(5))
    for _ in range(2):
        target.alter("s.t", start, after)
        assert held(spark, target, "id", "a", "b") == [(2, 40, 30)]


def test_a_column_made_again_is_a_new_one(spark: SparkSession, tmp_path: Path) -> None:
    start, after = relation(ID, A), relation(ID, replace(A, attnum=9, missing="5"))
    target = target_of(spark, tmp_path, start, (1, "I", {"id": 1, "a": 10}))
    for _ in range(2):
        target.alter("s.t", start, after)
        assert held(spark, target, "id", "a") == [(1, 5)]


def test_a_nullable_column_costs_no_rewrite(spark: SparkSession, tmp_path: Path) -> None:
    start, after = relation(ID), relation(ID, A)
    target = target_of(spark, tmp_path, start, (1, "I", {"id": 1}))
    files = DeltaTable(target.path("s.t")).file_uris()
    target.alter("s.t", start, after)
    assert DeltaTable(target.path("s.t")).file_uris() == files
    version = lake.version(target.path("s.t"))
    target.alter("s.t", start, after)
    assert lake.version(target.path("s.t")) == version
    assert held(spark, target, "id", "a") == [(1, None)]


UTC = dt.timezone.utc
TYPES: list[tuple[str, str, Any, str]] = [
    ("timestamptz", "timestamp", dt.datetime(2026, 1, 2, 3, 4, 5, 60000, UTC), "2026-01-02 03:04:05.06+00"),
    ("timestamp", "timestamp_ntz", dt.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02 03:04:05"),
    ("numeric", "decimal(12,2)", Decimal("-1.50"), "-1.50"),
    ("bool", "boolean", True, "true"),
    ("date", "date", dt.date(2026, 1, 2), "2026-01-02"),
    ("bytea", "binary", b"\x00\xff", "\\x00ff"),
    ("int8", "bigint", -(2**62), str(-(2**62))),
]


def test_values_as_text_and_missing_values(spark: SparkSession, tmp_path: Path) -> None:
    """What a column's values become when it becomes text, and the `missing` constant of every type."""
    typed = [Column(kind, 10 + i, kind, kind, lake_type) for i, (kind, lake_type, _, _) in enumerate(TYPES)]
    start = relation(ID, *typed)
    row = {"id": 1} | {kind: value for kind, _, value, _ in TYPES}
    target = target_of(spark, tmp_path, start, (1, "I", row))
    texts = [replace(c, type="string", kind="text", source_type="text") for c in typed]
    fresh = [
        replace(c, name="new_" + c.name, attnum=c.attnum + 50, missing="t" if text == "true" else text)
        for c, (_, _, _, text) in zip(typed, TYPES, strict=True)
    ]
    target.alter("s.t", start, relation(ID, *texts, *fresh))
    df = rows_at(spark, target.path("s.t"))
    df = df.withColumn("new_timestamptz", df["new_timestamptz"].cast("timestamp_ntz"))
    found = df.collect()[0].asDict()
    for kind, _, value, text in TYPES:
        assert found[kind] == text
        plain = value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
        assert found["new_" + kind] == plain


RETYPED = [
    ("float8/double", "text/string"), ("text/string", "int4/int"), ("json/string", "jsonb/string"),
    ("int8/bigint", "int4/int"), ("timestamp/timestamp_ntz", "timestamptz/timestamp"),
]  # fmt: skip


def test_unfaithful_retypes_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def column(place: int, text: str) -> Column:
        kind, lake_type = text.split("/")
        return Column(f"x{place}", 2 + place, kind, kind, lake_type)

    before = [column(place, old) for place, (old, _) in enumerate(RETYPED)]
    target = target_of(spark, tmp_path, relation(ID, *before), (1, "I", {"id": 1}))
    for place, (_, new) in enumerate(RETYPED):
        after = [*before[:place], column(place, new), *before[place + 1 :]]
        with pytest.raises(ApplyError, match="tailrace resync") as told:
            target.alter("s.t", relation(ID, *before), relation(ID, *after))
        assert f"x{place}" in str(told.value)


AWKWARD = [
    Column('Say "Id"', 1, "bytea", "bytea", "binary", key=True),
    Column("select", 2, "timestamp", "timestamp", "timestamp_ntz", key=True),
    Column("x.y`z", 3, "float8", "float8", "double", key=True),
    Column("Mixed Case; (odd)", 4, "text", "text", "string"),
    Column("größe", 5, "numeric", "numeric", "decimal(38,10)"),
]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 30, 0], ids=["task_local", "distributed"])
def test_names_and_keys_of_any_kind(spark: SparkSession, tmp_path: Path, limit: int) -> None:
    names = [c.name for c in AWKWARD]
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 123456)

    def row(key: bytes, number: float, word: str) -> dict[str, Any]:
        return dict(zip(names, (key, at, number, word, Decimal("1.5")), strict=True))

    target = DeltaTarget(spark, str(tmp_path), app_id="x", local_limit_bytes=limit)
    of = relation(*AWKWARD)
    nan = float("nan")
    merge_images(spark, target, of, [(1, "I", row(b"\x00", nan, "a")), (2, "I", row(b"\x00\xff", -0.0, "b"))])
    merge_images(spark, target, of, [(3, "U", row(b"\x00", nan, "A")), (4, "U", row(b"\x00\xff", 0.0, "B"))])
    merge_images(spark, target, of, [(5, "I", row(b"", 1.0, "c")), (6, "D", row(b"\x00", nan, "A"))])
    found = rows_at(spark, target.path("s.t")).collect()
    assert sorted((bytes(r[0]), r[3]) for r in found) == [(b"", "c"), (b"\x00\xff", "B")]


def test_changes_of_a_column_that_became_another_type_are_read_as_they_were(
    spark: SparkSession, tmp_path: Path
) -> None:
    number = Column("n", 2, "double precision", "float8", "double")
    text = Column("n", 2, "text", "text", "string")
    rows: dict[str, list[object]] = {"header__change_seq": [], "n__until_50": [], "n": []}
    for seq, old, new in ((7, 1.5, None), (60, None, "x")):
        rows["header__change_seq"].append(sequence.make(2026010100000000, seq))
        rows["n__until_50"].append(old)
        rows["n"].append(new)
    kinds = pa.schema(
        [("header__change_seq", pa.string()), ("n__until_50", pa.float64()), ("n", pa.string())]
    )
    path = str(tmp_path / "t__ct")
    lake.append(path, pa.table(rows, schema=kinds))
    for column, after, upto, want in ((number, 0, 49, 1.5), (text, 49, 99, "x")):
        relation = Relation(1, "s", "t", "f", (column,))
        found = read_changes(spark, ChangeBatch("t", relation, ChangeRange(after, upto), path))
        assert found is not None
        assert found.ordinal("n") == (1 if after == 0 else 2)
        assert [r["n"] for r in found.df.collect()] == [want]


@pytest.mark.slow
def test_a_column_that_somebody_added_stays_with_its_values(spark: SparkSession, tmp_path: Path) -> None:
    start = relation(ID, A, B)
    target = target_of(spark, tmp_path, start, (1, "I", {"id": 1, "a": 10, "b": 20}))
    DeltaTable(target.path("s.t")).alter.add_columns(
        [Field("note", PrimitiveType("string"), metadata={"comment": "ours"})]
    )
    DeltaTable(target.path("s.t")).update(new_values={"note": "mine"})
    dropped = relation(ID, replace(A, name="c", type="bigint", kind="int8", source_type="bigint"))
    for _ in range(2):
        target.alter("s.t", start, dropped)
        assert held(spark, target, "id", "c", "note") == [(1, 10, "mine")]
    after = relation(*dropped.columns, replace(B, attnum=9, missing="5"))
    target.alter("s.t", dropped, after)
    row = {"id": 2, "c": 1, "b": 2}
    merge_images(spark, target, after, [(2, "I", row), (3, "U", {"id": 1, "c": 11, "b": 6})])
    assert held(spark, target, "id", "c", "b", "note") == [(1, 11, 6, "mine"), (2, 1, 2, None)]
    (field,) = [f for f in DeltaTable(target.path("s.t")).schema().fields if f.name == "note"]
    assert field.metadata == {"comment": "ours"}


def test_a_column_that_somebody_added_is_not_replaced_by_one_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    start = relation(ID)
    target = target_of(spark, tmp_path, start, (1, "I", {"id": 1}))
    DeltaTable(target.path("s.t")).alter.add_columns([Field("a", PrimitiveType("integer"))])
    DeltaTable(target.path("s.t")).update(new_values={"a": 7})
    for dry_run in (True, False):
        with pytest.raises(
            ApplyError, match="already has a column 'a' with values that another process wrote"
        ):
            target.alter("s.t", start, relation(ID, A), dry_run=dry_run)
    assert held(spark, target, "id", "a") == [(1, 7)]


@pytest.mark.slow
@pytest.mark.parametrize(("keyed", "limit"), [(True, 0), (True, 1 << 30), (False, 1 << 30)])
def test_changes_leave_the_values_in_a_column_that_somebody_added(
    spark: SparkSession, tmp_path: Path, keyed: bool, limit: int
) -> None:
    layout = relation(replace(ID, key=keyed), A)
    target = DeltaTarget(spark, str(tmp_path), app_id="x", local_limit_bytes=limit, rewrite_bytes=limit)
    rows = [{"id": n, "a": n} for n in (1, 2, 3)]
    merge_images(spark, target, layout, [(n, "I", row) for n, row in enumerate(rows, 1)])
    DeltaTable(target.path("s.t")).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(target.path("s.t")).update(new_values={"note": "mine"})
    images: list[Image] = [(4, "D", rows[2]), (5, "I", {"id": 4, "a": 4})]
    images += [(6, "B", rows[0]), (6, "U", {"id": 1, "a": 9})] if keyed else []
    done = merge_images(spark, target, layout, images)
    first = (1, 9, "mine") if keyed else (1, 1, "mine")
    assert held(spark, target, "id", "a", "note") == [first, (2, 2, "mine"), (4, 4, None)], done.plan
    if keyed:
        done = merge_images(spark, target, layout, [(7, "U", {"id": 2, "a": 8})])
        assert held(spark, target, "id", "a", "note")[1] == (2, 8, "mine"), done.plan
