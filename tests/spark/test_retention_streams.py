"""After changes were taken away streams go on, no row comes twice, and older changes are asked for in vain."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tailrace.apply.reading import read_changes
from tailrace.errors import PositionError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.positions import ChangeRange
from tailrace.operate.retention import PurgeOrder, purge_task
from tailrace.runtime.pipeline import Pipeline
from tailrace.targets.change_batch import ChangeBatch

from ..unit.test_log_and_store import ITEM
from .test_log_removed import capture, task_of

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_streams_of_the_task_and_of_others_go_on(spark, tmp_path: Path) -> None:
    task, seen = task_of(tmp_path), []
    changes = task.changes_path("shop.item")

    def read() -> list[int]:
        rows = spark.readStream.format("delta").option("ignoreDeletes", "true").load(changes)
        query = rows.writeStream.option("checkpointLocation", str(tmp_path / "mine")).trigger(
            availableNow=True
        )
        before = len(seen)
        query.foreachBatch(
            lambda df, _: seen.extend(r["id"] for r in df.collect())
        ).start().awaitTermination()
        return sorted(seen[before:])

    capture(task, 1, 2, 3)
    Pipeline(task, spark).drain()
    assert read() == [1, 2, 3]
    capture(task, 4)
    Pipeline(task, spark).drain()
    DeltaTable(changes).optimize.compact()
    done = {one.table: one.goes for one in purge_task(task, PurgeOrder(upto=6))}
    assert (done["shop.item"].rewritten, done["shop.item"].rows, done["TRACKING"].rows) == (1, 2, 2)
    assert read() == [4]
    capture(task, 5)
    Pipeline(task, spark).drain()
    purge_task(task, PurgeOrder(upto=15))
    capture(task, 6)
    Pipeline(task, spark).drain()
    assert read() == [5, 6]
    assert sorted(lake.read(task.target_path("shop.item"))["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]
    assert lake.read(changes)["id"].to_pylist() == [6]

    relation = log.history(task.relations_path)["shop.item"][-1].relation
    assert relation.table == ITEM.table
    with pytest.raises(
        PositionError, match="changes after number 3 are needed; only those after 14 are kept"
    ):
        read_changes(spark, ChangeBatch(ITEM.table, relation, ChangeRange(3, 18), changes))
    later = read_changes(spark, ChangeBatch(ITEM.table, relation, ChangeRange(14, 18), changes))
    assert later is not None and [r["id"] for r in later.df.collect()] == [6]
