"""`tailrace apply --keylog` fills the control tables; they join as spec/sqdr.md §8 says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.formats.sqdr.control import TABLES
from tailrace.lake import delta
from tailrace.operate import control_tables
from tailrace.operate import vendor_apply as incoming
from tailrace.testing.images import RELATION, Image, change_rows, image

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SKELETON = """
    SELECT k.subscription_id, k.change_row_type, k.result_row_count, i.apply_rules, i.flagged_count, g.name,
           s.kind, s.state, s.change_count, t.destination_dsn
    FROM ir_keylog k JOIN ir_subscription i ON k.subscription_id = i.subscription_id
    JOIN groups g ON k.group_id = g.id
    LEFT JOIN statistic s ON k.run_id = s.run_id
    LEFT JOIN subscriptions t ON k.subscription_id = t.id
    ORDER BY k.subscription_id, k.change_row_counter
"""


def write(folder: Path, name: str, images: Sequence[Image]) -> None:
    """A change table of tailrace's own, as `apply` reads it."""
    delta.append(str(folder / f"s.{name}__ct"), change_rows(RELATION, images))


@pytest.mark.slow
def test_runs_of_apply_join_with_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    changes, lake, log = (str(tmp_path / n) for n in ("changes", "lake", "ir_keylog"))
    write(Path(changes), "a", [(1, "I", image(1, "x")), (2, "U", image(2, "y"))])
    write(Path(changes), "b", [(3, "I", image(1, "x")), (4, "D", {"id": 7})])

    ruling = incoming.ruling("strict", {}, None, log, "all")
    incoming.run(spark, changes, "tailrace", {"key": "id"}, lake, app_id="shop", ruling=ruling)
    for name in TABLES:
        spark.read.format("delta").load(control_tables.path(log, name)).createOrReplaceTempView(name)
    spark.read.format("delta").load(log).createOrReplaceTempView("ir_keylog")
    said = ("strict", 1, "shop", "apply", "ended", 2, lake)
    assert [tuple(r) for r in spark.sql(SKELETON).collect()] == [
        ("s.a", "I", 1, *said), ("s.a", "U", 0, *said), ("s.b", "I", 1, *said), ("s.b", "D", 0, *said),
    ]  # fmt: skip
