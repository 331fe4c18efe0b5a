"""Tasks of store, apply and new layouts: the same results from threads of the driver and from Spark's tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailrace.errors import ApplyError, PositionError
from tailrace.execution import BackgroundSession, JobCount, counted, since
from tailrace.lake import delta as lake
from tailrace.model import sequence
from tailrace.model.change import Column
from tailrace.model.positions import ChangeRange
from tailrace.store.log_files import LogFiles
from tailrace.store.running import runner
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.reshape import parts
from tailrace.targets.delta.target import DeltaTarget

from ..unit.test_log_gaps import home, ids, store
from ..unit.test_log_gaps import parts as log_files
from ..unit.test_merge_shards import CHANGES, RELATION, ROWS, Place
from ..unit.test_merge_shards import counted as counts_of

pytestmark = pytest.mark.spark


class Executor:
    """A session whose tasks do every step, however small; or none."""

    def __init__(self, spark: SparkSession | None) -> None:
        self.session: Any = None
        if spark is not None:
            self.session = BackgroundSession(lambda: spark, given=spark, driver_limit=0)
            self.session.begin()
            while self.session.ready is None:
                time.sleep(0.01)
        self.before = counted()

    def ran(self, kind: str) -> bool:
        """Whether the steps since then ran where they should."""
        done = since(self.before).get(kind, JobCount())
        return (done.jobs > 0) is (self.session is not None)


@pytest.fixture(params=["driver", "spark"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    yield Executor(request.getfixturevalue("spark") if request.param == "spark" else None)


def test_log_is_stored_in_change_tables(executor: Executor, tmp_path: Path) -> None:
    at = home(tmp_path, 5)
    log, mine = str(at / "log"), store(at)
    mine.batch(runner(log, LogFiles(log, -1).batch(-1, 1 << 30), executor.session))
    assert (mine.reached, ids(at)) == (15, [0, 1, 2, 3, 4])
    assert executor.ran("store")


def test_missing_file_of_log_says_which_records_are_lost(executor: Executor, tmp_path: Path) -> None:
    at = home(tmp_path, 3)
    log, mine = str(at / "log"), store(at)
    files = LogFiles(log, -1).batch(-1, 1 << 30)
    log_files(at)[1].unlink()
    with pytest.raises(PositionError, match="LOG has lost records that were not stored yet: 4 to 6"):
        mine.batch(runner(log, files, executor.session))
    assert not (at / "item__ct" / "_delta_log" / f"{1:020}.json").exists()


def test_tables_of_a_step_are_merged_each_by_a_task(executor: Executor, tmp_path: Path) -> None:
    target, todo = DeltaTarget(executor.session, f"{tmp_path}/lake", app_id="x"), []
    for name, key in (("a", 1), ("b", None), ("c", 3)):
        lake.append(target.path(f"s.{name}"), pa.table([[1], ["old"]], schema=ROWS))
        row = (sequence.make(1_700_000_000_000_000, 1), "U", "0" * 40, key, "new")
        lake.append(f"{tmp_path}/{name}", pa.table([[value] for value in row], schema=CHANGES))
        relation = replace(RELATION, name=name)
        path = target.path(f"s.{name}")
        todo.append(ChangeBatch(f"s.{name}", relation, ChangeRange(0, 1), f"{tmp_path}/{name}", target=path))
    good, bad, new = target.merge(todo)
    assert (counts_of(good)[:3], counts_of(new)[:3]) == ((0, 1, 0), (1, 0, 0))
    assert isinstance(bad, ApplyError) and "NULL in the row key" in bad.what
    found = [sorted(lake.read(target.path(f"s.{t}"))["v"].to_pylist()) for t in "abc"]
    assert found == [["new"], ["old"], ["new", "old"]]
    assert executor.ran("apply")


def test_large_table_is_merged_by_shards(executor: Executor, tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a", 2: "b", 3: "c"}, session=executor.session)
    lake.append(place.path, pa.table([[11, 12], ["k", "l"]], schema=ROWS))
    place.stored((1, "U", 2, "B"), (2, "I", 4, "D"), (3, "D", 12, None))
    assert counts_of(place.merge(0, 3)) == (1, 1, 1, "rewrite", 3)
    assert place.rows() == {1: "a", 2: "B", 3: "c", 4: "D", 11: "k"}
    assert executor.ran("apply")


def test_rows_get_a_new_layout(executor: Executor, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for key in (1, 2):
        lake.append(path, pa.table([[key], ["a"]], schema=ROWS))
    after = RELATION.with_columns(
        [Column("id", 1, "bigint", "int8", "bigint", key=True), RELATION.columns[1]]
    )
    made = parts(executor.session, path, DeltaTable(path), RELATION, after)
    lake.replace_all(path, made, schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), progress={})
    found = lake.read(path)
    assert (found.schema.field("id").type, sorted(found["id"].to_pylist())) == (pa.int64(), [1, 2])
    assert executor.ran("apply")
