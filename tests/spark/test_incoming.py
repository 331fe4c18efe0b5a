"""Change tables that others made, applied to a Delta target without any capture."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tailrace.apply.vendor import change_stats, upsert
from tailrace.errors import FormatError
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.changes import COLUMNS, Image, change_table
from tailrace.testing.formats import full

from .literal_tables import rows_at

pytestmark = pytest.mark.spark
NAME = "shop.item"


@pytest.fixture
def target(spark, tmp_path):
    return DeltaTarget(spark, str(tmp_path), app_id="incoming")


@pytest.fixture
def apply(target, tmp_path):
    return lambda table: upsert.apply(target, {NAME: table}, str(tmp_path))[NAME]


def rows(spark, target):
    found = rows_at(spark, target.path(NAME)).orderBy("id").collect()
    return [(r["id"], r["name"], r["note"]) for r in found]


HISTORY = [
    Image(1, "I", full(1)),
    Image(2, "I", full(2)),
    Image(3, "I", full(3)),
    Image(4, "B", full(1)),
    Image(4, "U", full(9, "moved")),
    Image(5, "U", {"id": 2, "note": "n"}, ["note"]),
    Image(6, "D", {"id": 3}),
]


@pytest.mark.slow
def test_applied_once(spark, target, apply):
    done = apply(change_table(spark, HISTORY))
    assert rows(spark, target) == [(2, "a", "n"), (9, "moved", None)]
    assert target.progress(NAME) == 6
    assert done.inserted == 2
    again = apply(change_table(spark, HISTORY))
    assert again.plan == "none"
    apply(change_table(spark, [*HISTORY, Image(7, "D", {"id": 2})]))
    assert rows(spark, target) == [(9, "moved", None)]


def test_a_column_more(spark, target, apply):
    apply(change_table(spark, HISTORY))
    wide = COLUMNS | {"extra": "decimal(5,1)"}
    more = [Image(8, "I", full(8) | {"extra": Decimal("1.5")})]
    apply(change_table(spark, more, columns=wide))
    found = rows_at(spark, target.path(NAME)).orderBy("id").collect()
    assert [(r["id"], r["extra"]) for r in found] == [(2, None), (8, Decimal("1.5")), (9, None)]


def test_story(spark):
    told = change_stats.row_history(change_table(spark, HISTORY), {"id": 2}).collect()
    assert [(r["change_oper"], r["changed"], r["note"]) for r in told] == [
        ("I", list(COLUMNS), None),
        ("U", ["note"], "n"),
    ]


def test_a_sequence_that_is_none(spark, apply):
    from pyspark.sql import functions as F

    ct = change_table(spark, HISTORY)
    with pytest.raises(FormatError, match="'12' is not a change sequence of 35 digits"):
        apply(ct.with_df(ct.df.withColumn("header__change_seq", F.lit("12"))))
