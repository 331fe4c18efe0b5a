"""Mappings: literal changes of a source in, the changes of its target out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.apply.ddl import projection
from tailrace.apply.mapping.mapped import mapped
from tailrace.apply.mapping.multi_source import clashes
from tailrace.apply.mapping.prepare import Prepared, mistakes, prepare
from tailrace.apply.mapping.table_map import TableMap
from tailrace.model import mask
from tailrace.model.change import Column, Relation
from tailrace.targets.images import refused
from tailrace.testing.images import Image, change_table
from tailrace.validate.target_shape import TargetShape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ID = Column("id", 1, "integer", "int4", "int", key=True)
REGION = Column("region", 2, "text", "text", "string")
QTY = Column("qty", 3, "integer", "int4", "int")
FULL = Relation(1, "eu", "orders", "f", (ID, REGION, QTY))
BY_KEY = Relation(1, "eu", "orders", "d", (ID, REGION, QTY))


def made(spark: SparkSession, relation: Relation = FULL, **words: Any) -> Prepared:
    return prepare(lambda: spark, TableMap("eu.orders", words.pop("target", "all.orders"), **words), relation)


def changes(spark: SparkSession, one: Prepared, *rows: Image) -> list[tuple[Any, ...]]:
    """Number, operation, the target's values, the columns carried and those changed."""
    found = mapped(change_table(spark, one.source, rows), one)
    names = found.df.columns
    told = []
    for r in found.df.orderBy(found.header("change_seq"), found.header("change_oper")).collect():
        carried = r["header__column_mask"]
        there = "all" if carried is None else [names[n] for n in mask.decode(carried)]
        told.append((int(r[0][16:]), r["header__change_oper"], {c: r[c] for c in found.columns}, there))
    return told


def row(key: int, region: str | None, qty: int = 1) -> dict[str, Any]:
    return {"id": key, "region": region, "qty": qty}


def test_criteria_follow_the_match_matrix(spark: SparkSession) -> None:
    one = made(spark, where="region = 'EU'")
    rows = [
        (1, "I", row(1, "EU")), (2, "I", row(2, "US")), (3, "I", row(3, None)),
        (4, "B", row(1, "EU")), (4, "U", row(1, "EU", 2)),
        (5, "B", row(1, "EU")), (5, "U", row(1, "US")),
        (6, "B", row(2, "US")), (6, "U", row(2, "EU")),
        (7, "B", row(3, None)), (7, "U", row(3, "US")),
        (8, "D", row(2, "EU")), (9, "D", row(3, "US")), (10, "T", {}),
        (11, "B", row(7, "EU")), (11, "U", row(8, "EU")),
    ]  # fmt: skip
    found = mapped(change_table(spark, FULL, rows), one)
    wanted = [
        "header__change_seq",
        "header__change_oper",
        "header__operation",
        "header__native_change_row_type",
        "id",
        "region",
    ]
    told = [(int(r[0][16:]), *r[1:]) for r in found.df.select(*wanted).orderBy(*wanted[:2]).collect()]
    assert told == [
        (1, "I", "INSERT", None, 1, "EU"),
        (4, "B", "BEFOREIMAGE", None, 1, "EU"), (4, "U", "UPDATE", None, 1, "EU"),
        (5, "D", "DELETE", "B", 1, "EU"),
        (6, "I", "INSERT", None, 2, "EU"),
        (8, "D", "DELETE", None, 2, "EU"),
        (10, "T", "TRUNCATE", None, None, None),
        (11, "B", "BEFOREIMAGE", None, 7, "EU"), (11, "U", "UPDATE", None, 8, "EU"),
    ]  # fmt: skip


def test_criteria_on_the_key_need_no_old_images(spark: SparkSession) -> None:
    one = made(spark, BY_KEY, where="id < 10")
    rows = [
        (1, "U", {"id": 1, "qty": 5}), (2, "U", {"id": 20, "qty": 5}),
        (3, "B", {"id": 1}), (3, "U", row(30, "x")),
        (4, "B", {"id": 31}), (4, "U", row(2, "x")),
        (5, "D", {"id": 3}), (6, "D", {"id": 40}),
    ]  # fmt: skip
    told = [(n, oper, image["id"]) for n, oper, image, _ in changes(spark, one, *rows)]
    assert told == [(1, "U", 1), (3, "D", 1), (4, "I", 2), (5, "D", 3)]


def test_without_an_old_image_a_row_that_does_not_match_may_have_been_here(spark: SparkSession) -> None:
    one = made(spark, where="region = 'EU'")
    rows = [(1, "U", row(1, "EU")), (2, "U", row(2, "US")), (3, "D", {"id": 3})]
    told = [(n, oper, image["id"]) for n, oper, image, _ in changes(spark, one, *rows)]
    assert told == [(1, "U", 1), (2, "D", 2), (3, "D", 3)]
    # Without a key the new image names no row: it stays an update, which is refused for want of an old one.
    keyless = FULL.with_columns([replace(c, key=False) for c in FULL.columns])
    told = changes(spark, made(spark, keyless, where="region = 'EU'"), (2, "U", row(2, "US")))
    assert [(n, oper) for n, oper, _, _ in told] == [(2, "U")]


def test_an_image_that_leaves_out_what_criteria_read_is_refused(spark: SparkSession) -> None:
    one = made(spark, where="region = 'EU'")
    with pytest.raises(Exception, match="tailrace") as caught:
        changes(spark, one, (7, "U", {"id": 1, "qty": 2}))
    told = refused(caught.value, "eu.orders")
    assert told is not None and str(told.where).endswith("0000000007")


def test_columns_are_renamed_dropped_computed_and_constant_and_masks_follow(spark: SparkSession) -> None:
    one = made(
        spark, columns={"number": "id", "twice": "qty * 2", "note": "region"}, drop=("qty",),
        constants={"site": "eu"}, key=("site", "number"),
    )  # fmt: skip
    assert [(c.name, c.type, c.key) for c in one.relation.columns] == [
        ("number", "int", True), ("note", "string", False), ("twice", "int", False), ("site", "string", True),
    ]  # fmt: skip
    rows = [
        (1, "I", row(1, "x", 4)),
        (2, "U", {"id": 1, "qty": 5}),
        (3, "U", {"id": 1, "region": "y"}),
        (4, "D", {"id": 1}),
    ]
    assert changes(spark, one, *rows) == [
        (1, "I", {"number": 1, "twice": 8, "note": "x", "site": "eu"}, "all"),
        (2, "U", {"number": 1, "twice": 10, "note": None, "site": "eu"}, ["number", "twice", "site"]),
        (3, "U", {"number": 1, "twice": None, "note": "y", "site": "eu"}, ["number", "note", "site"]),
        (4, "D", {"number": 1, "twice": None, "note": None, "site": "eu"}, ["number", "site"]),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"where": "regoin = 'EU'"}, "regoin"),
        ({"where": "qty + 1"}, "is int, not boolean"),
        ({"where": "qty ="}, "is not a Spark SQL expression"),
        ({"where": "rand() < 0.5"}, "not the same each time"),
        ({"where": "current_date() > '2026-01-01'"}, "not the same each time"),
        ({"where": "qty > (select 1)"}, "reads another table"),
        ({"columns": {"n": "sum(qty)"}}, "more than one row"),
        ({"columns": {"n": "row_number() over (order by qty)"}}, "more than one row"),
        ({"columns": {"n": "map('n', qty)"}}, "a type that targets do not have"),
        ({"columns": {"n": "qty + 'x' + unknown(qty)"}}, "unknown"),
        ({"drop": ("id",)}, "key column 'id' is left out"),
        ({"key": ("id", "region")}, "'region' may be NULL"),
        ({"columns": {"n": "cast(region as int)"}, "key": ("id", "n")}, "'n' may be NULL"),
        ({"key": ("nothing",)}, "no column 'nothing'"),
        ({"constants": {"qty": "x"}, "columns": {"qty": "1"}}, "is in `columns` too"),
    ],
)  # fmt: skip
def test_mistakes_are_found_without_data(spark: SparkSession, words: dict[str, Any], said: str) -> None:
    found = mistakes(lambda: spark, TableMap("eu.orders", "eu.orders", **words), FULL)
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"where": "region = 'EU'"}, "where: the before image of an update or delete has no region"),
        ({"columns": {"n": "coalesce(region, '')"}, "key": ("id", "n")}, "before images do not have"),
        ({"columns": {"n": "concat(region, qty)"}}, "an update may leave out region"),
        ({"columns": {"n": "upper(region)"}}, None),
        ({"where": "id > 5"}, None),
    ],
)
def test_what_old_images_do_not_carry_is_told_with_its_cure(
    spark: SparkSession, words: dict[str, Any], said: str | None
) -> None:
    found = mistakes(lambda: spark, TableMap("eu.orders", "eu.orders", **words), BY_KEY)
    assert [one for one in found if "REPLICA IDENTITY FULL" in one and str(said) in one] == found
    assert bool(found) == (said is not None)


def test_sources_of_one_target_must_be_told_apart(spark: SparkSession) -> None:
    def one(source: str, **words: Any) -> Prepared:
        return prepare(lambda: spark, TableMap(source, "all.orders", **words), FULL)

    eu, us = one("eu.orders", constants={"site": "eu"}), one("us.orders", constants={"site": "us"})
    assert clashes([eu, us]) == []
    assert "with the same constants" in clashes([eu, one("us.orders", constants={"site": "eu"})])[0]
    assert "needs a constant" in clashes([eu, one("us.orders")])[0]
    other = one("us.orders", constants={"site": "us"}, drop=("qty",))
    assert "different columns" in clashes([eu, other])[0]


def test_a_column_that_a_target_keeps_is_absent_from_images(spark: SparkSession) -> None:
    source = FULL.with_columns([ID, Column("area", 2, "text", "text", "string")])
    one = projection(source, FULL)
    assert one is not None
    rows = [(1, "I", {"id": 1, "area": "x"}), (2, "U", {"id": 1, "area": "y"}), (3, "U", {"id": 1})]
    told = changes(spark, one, *rows)
    assert [(n, image["region"], there) for n, _, image, there in told] == [
        (1, "x", ["id", "region"]), (2, "y", ["id", "region"]), (3, None, ["id"]),
    ]  # fmt: skip


def test_an_expression_that_is_wrong_is_said_once_without_a_stack(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    (wrong,) = mistakes(lambda: spark, TableMap("eu.orders", "all.orders", where="regoin = 'EU'"), FULL)
    assert wrong.startswith("where: ") and "regoin" in wrong and "region" in wrong
    assert capfd.readouterr().err == ""


def test_what_the_source_dropped_is_not_compared(spark: SparkSession) -> None:
    """A column that the target kept, by itself and in an expression."""
    now = FULL.with_columns([ID, QTY])
    both = TargetShape(now, FULL, made(spark, columns={"twice": "qty * 2", "word": "upper(region)"}))
    rows = both.source_frame(now, spark.createDataFrame([(1, 4)], "id int, qty int"))
    assert [r.asDict() for r in rows.collect()] == [{"id": 1, "qty": 4, "twice": 8}]
    assert both.kept == ["region", "word"]


def test_a_session_that_starts_late_starts_before_types_are_parsed() -> None:
    """`validate` has none before: in a process of its own, a parser without session would fail."""
    words = (
        "from tailrace.apply.mapping.expressions import empty_of\n"
        "from tailrace.execution import BackgroundSession\n"
        "from tailrace.model.change import Column, Relation\n"
        "def started(): raise SystemExit('started')\n"
        "relation = Relation(1, 's', 't', 'd', (Column('id', 1, 'int4', 'int4', 'int', key=True),))\n"
        "empty_of(BackgroundSession(started).as_session, relation)\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("started"), done.stderr
