"""A table that is behind the others: what it gets does not hang on where slices begin."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.apply.task_rules import TableRules
from tailrace.lake import delta as lake
from tailrace.model.types import schema_of
from tailrace.state.baselines import Baseline, write_baseline

from .rules_model import RELATION, Change
from .rules_task import NOW, Staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Between(threading.Event):
    """Does something when the applier is about to begin its n-th slice."""

    def __init__(self, n: int, what: Callable[[], None]) -> None:
        super().__init__()
        self.left, self.what = n, what

    def is_set(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.what()
        return False


def test_a_baseline_that_lands_between_two_slices_gets_the_changes_of_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    task = Staged(spark, tmp_path, {"s.t": TableRules()}, keylog="off")
    rows = [{"lane": 0, "id": k, "a": 1, "b": "large"} for k in "pqr"]
    lake.append(
        task.target.path("s.t"),  # type: ignore[attr-defined]
        pa.Table.from_pylist(rows, schema_of(RELATION.columns)),
        progress={"t": 0},
    )
    task.put({"s.t": [
        Change(1, "U", None, {"lane": 0, "id": "p", "a": 2}),  # b was not sent: it keeps its value
        Change(2, "U", (0, "q"), {"lane": 0, "id": "s", "a": 3, "b": "moved"}),
        Change(3, "D", None, {"lane": 0, "id": "r"}),
    ]})  # fmt: skip
    task.put({"s.t": [Change(4, "I", None, {"lane": 0, "id": "u", "a": 4, "b": "new"})]})
    taken = Baseline("s.t", task.relation("s.t"), "", 3, 0, NOW + dt.timedelta(seconds=1), 0, after=0)
    landing = Between(2, lambda: write_baseline(f"{task.control}/baselines", taken))

    applier = task.applier(max_changes=1, need_baseline=True)
    applier.catch_up(landing)

    found = lake.read(task.target.path("s.t")).to_pylist()  # type: ignore[attr-defined]
    assert sorted((r["id"], r["a"], r["b"]) for r in found) == [
        ("p", 2, "large"), ("s", 3, "moved"), ("u", 4, "new"),
    ]  # fmt: skip
    assert applier.recorded == 4
