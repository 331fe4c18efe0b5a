"""The key log is the same whoever renders it: the one task of a merge, tasks side by side, Spark's expressions."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.apply.rules import RulesApplier
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.engine.rules import Rules
from tailrace.keylog.key_log import KeyLog
from tailrace.model.change import Column, Relation
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.images import Image, change_table

from .literal_tables import rows_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.model.change import ChangeTable

pytestmark = pytest.mark.spark
COLUMNS = [
    ("at day", "date", True), ("id", "int", True), ("text`.&", "string", False), ("fee", "decimal(12,2)", False),
    ("seen", "timestamp", False), ("raw", "binary", False), ("on", "boolean", False), ("half", "double", False),
]  # fmt: skip
RELATION = Relation(
    1, "s", "t", "d", tuple(Column(n, i, "", "", kind, key=key) for i, (n, kind, key) in enumerate(COLUMNS))
)
DAY = dt.date(2026, 3, 1)
NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 120_000, tzinfo=dt.timezone.utc)


def row(key: int, text: str | None, *more: Any) -> dict[str, Any]:
    """A row; what `more` lacks of it is absent."""
    return dict(zip([n for n, _, _ in COLUMNS], [DAY, key, text, *more], strict=False))


WHOLE = (1.5, NOON, b"\x00\xff", True, 0.5)
CHANGES: list[Image] = [
    (1, "I", row(1, "a<\"&'>\x01", *WHOLE)),
    (2, "I", row(2, None, None, None, None, None, None)),
    (3, "U", row(1, "b", *WHOLE)),
    (4, "U", row(2, "absent from here")),
    (5, "U", row(3, "missing", *WHOLE)),
    (6, "B", {"at day": DAY, "id": 1}),
    (6, "U", row(4, "moved", *WHOLE)),
    (7, "D", {"at day": DAY, "id": 2}),
    (8, "D", row(9, "missing", *WHOLE)),
    (9, "I", row(4, "there", *WHOLE)),
]
WHO = [  # who renders it, by its size setting, and what is logged
    ("one task", 1 << 30, "all"),
    ("tasks", 0, "all"),
    ("Spark", 0, "all"),
    ("tasks", 0, "errors"),
    ("tasks", 0, "keys"),
]


def changes(spark: SparkSession, who: str) -> ChangeTable:
    from pyspark.sql import functions as F

    made = change_table(spark, RELATION, CHANGES)
    df = made.df.withColumns({"header__timestamp": F.lit(NOON), "header__user_name": F.lit("Z&Z")})
    if who == "Spark":  # as if another key log had held some of it
        df = df.withColumn("header__native_change_row_type", F.lit(None).cast("string"))
    return replace(made, df=df, name="s.t")


def log_of(spark: SparkSession, root: str, who: str, limit: int, mode: str) -> list[dict[str, Any]]:
    """The key log of these changes, without the times of its writing."""
    log = KeyLog(f"{root}/log", app_id="t", run_id="1", mode=mode)
    target = DeltaTarget(spark, root, app_id="t", local_limit_bytes=limit)
    under = RulesApplier(target, Rules.of("strict"), root=root, task="task", keylog=log)
    assert VendorApplier(under, root).apply(changes(spark, who)).flagged == 3
    rows = rows_at(spark, log.path).drop("keylog_ts", "insert_ts")
    return [r.asDict() for r in rows.orderBy("keylog_sort").collect()]


@pytest.mark.slow
def test_the_key_log_is_the_same_whoever_renders_it(spark: SparkSession, tmp_path: Path) -> None:
    one, tasks, expressions, errors, keys = (
        log_of(spark, f"{tmp_path}/{place}", *how) for place, how in enumerate(WHO)
    )
    assert one == tasks == expressions
    some = [r for r in one if r["result_error"]]
    assert [(r["change_row_counter"], r["flagged_count"]) for r in some] == [(5, 1), (8, 2), (9, 3)]
    assert [r["after_key"] for r in one if r["after_key"]] == ['at&#x0020day="2026-03-01" id="4"']
    assert {r["change_row_log_detail"] for r in one} == {"<detail> <user>Z&amp;Z</user> </detail>"}
    assert len(one) == 9
    assert errors == some
    assert keys == [r | {"after_image": None} for r in one]
