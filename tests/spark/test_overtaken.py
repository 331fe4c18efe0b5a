"""Two processes apply to one target, the older one from what it knew before it slept: nothing counts twice.

A lease keeps them apart but for one that sleeps between the question and its commit. Here no lease is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import OvertakenError
from tailrace.keylog import key_log as keylog
from tailrace.targets.delta import spark_merge
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.lake import task_local_merge
from tailrace.testing.images import KEYLESS, RELATION, image, merge_images, move

from .literal_tables import rows_at
from .rules_model import history
from .test_rules import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[[], object]], None]:
    """At a fail point of a module whoever comes there first sleeps, and another does its work."""

    def at(module: Any, point: str, work: Callable[[], object]) -> None:
        def reach(name: str) -> None:
            if name == point:
                monkeypatch.setattr(module, "reach", lambda _: None)
                work()

        monkeypatch.setattr(module, "reach", reach)

    return at


@pytest.mark.slow
def test_rows_without_key_are_added_once(spark: SparkSession, tmp_path: Path, asleep: Any) -> None:
    rows = [(n, "I", {"id": n, "v": "x"}) for n in range(1, 4)]
    one, other = (DeltaTarget(spark, str(tmp_path), app_id="t") for _ in range(2))
    other.alter(KEYLESS.table, KEYLESS, KEYLESS)
    asleep(task_local_merge, "delta.local", lambda: merge_images(spark, other, KEYLESS, rows[:2]))
    done = merge_images(spark, one, KEYLESS, rows)
    found = rows_at(spark, one.path(KEYLESS.table))
    assert sorted(r["id"] for r in found.collect()) == [1, 2, 3]
    assert (done.plan, done.inserted, one.progress(KEYLESS.table)) == ("append", 1, 3)


@pytest.mark.slow
def test_changes_of_a_merge_are_applied_once(spark: SparkSession, tmp_path: Path, asleep: Any) -> None:
    """Spark's job looks whether the version is the one that the batch was made from."""
    first = [(n, "I", image(n, "x")) for n in range(1, 4)]
    more = [(4, "D", {"id": 1}), (5, "I", image(7, "y")), *move(6, 2, image(9, "z"))]
    one, other = (
        DeltaTarget(spark, str(tmp_path), app_id="t", local_limit_bytes=1, rewrite_share=0, rewrite_bytes=0)
        for _ in range(2)
    )
    merge_images(spark, other, RELATION, first)
    asleep(spark_merge, "delta.distributed", lambda: merge_images(spark, other, RELATION, more[:2]))
    done = merge_images(spark, one, RELATION, more)
    found = rows_at(spark, one.path(RELATION.table)).collect()
    assert sorted((r["id"], r["v"]) for r in found) == [(3, "x"), (7, "y"), (9, "z")]
    # Begun anew, behind what the other one has applied: one row was moved.
    assert (done.plan, done.inserted, done.updated, done.deleted) == ("merge", 1, 0, 1)


LATE = [
    pytest.param(1, spark_merge, "delta.distributed", 9, id="before Spark's MERGE", marks=pytest.mark.slow),
    pytest.param(1 << 30, keylog, "keylog.flush", 48, id="before the key log"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "module", "point", "many"), LATE)
def test_every_change_is_applied_and_logged_once(
    spark: SparkSession, tmp_path: Path, asleep: Any, limit: int, module: Any, point: str, many: int
) -> None:
    """Rows and key log are a row-by-row model's. `many`: so many changes the other one has."""
    changes = history(3, 12, 4)
    one, other = (Place(spark, tmp_path, "strict", {}) for _ in range(2))
    for place in (one, other):
        place.target = DeltaTarget(
            spark, place.root, app_id="t", local_limit_bytes=limit, rewrite_share=0, rewrite_bytes=0
        )
    other.apply(changes[:4])
    asleep(module, point, lambda: other.apply(changes[:many]))
    with pytest.raises(OvertakenError, match="call again"):
        one.apply(changes)
    one.apply(changes)
    one.expect(changes)
    one.same()
