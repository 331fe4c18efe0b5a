"""A store batch by Spark's tasks, as a cluster does it: the same rows as by this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.errors import PositionError
from tailrace.execution import Job
from tailrace.lake import delta as lake
from tailrace.store.log_files import LogFiles
from tailrace.store.running import shared, shares

from ..unit.test_log_gaps import home, ids, parts, store

pytestmark = pytest.mark.spark
MANY = Job("store", "store 5,000 changes of 1 table", 5_000)


def test_sparks_tasks_store_what_this_process_stores(spark: SparkSession, tmp_path: Path) -> None:
    one, other = (home(tmp_path / name, 5) for name in ("here", "there"))
    for at, session in ((one, None), (other, spark)):
        log, mine = str(at / "log"), store(at)
        files = LogFiles(log, -1).batch(-1, 1 << 30)
        mine.batch(shared(log, shares(log, files, 2), MANY, session))
        assert (mine.reached, ids(at)) == (15, [0, 1, 2, 3, 4])
    for table in ("item__ct", "tracking"):
        rows = [
            lake.read(str(at / table)).drop_columns("_Time-Stamp" if table == "tracking" else [])
            for at in (one, other)
        ]
        key = "change_seq" if table == "tracking" else "header__change_seq"
        assert [r.num_rows for r in rows] == [5, 5], table
        assert len({str(r.sort_by(key).drop_columns([key]).to_pylist()) for r in rows}) == 1


def test_a_file_that_is_gone_says_which_records_are_lost(spark: SparkSession, tmp_path: Path) -> None:
    at = home(tmp_path, 3)
    log, mine = str(at / "log"), store(at)
    files = LogFiles(log, -1).batch(-1, 1 << 30)
    parts(at)[1].unlink()
    with pytest.raises(PositionError, match="LOG lacks records that were not stored yet: 4 to 6"):
        mine.batch(shared(log, shares(log, files, 2), MANY, spark))
    assert not (at / "item__ct" / "_delta_log" / f"{1:020}.json").exists()
