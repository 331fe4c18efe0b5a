"""Tables saved side by side: one that fails, and Ctrl-C, end the others' jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.errors import ConfigError
from tailrace.formats import file_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def endless(spark: SparkSession, started: Path) -> DataFrame:
    """A table whose job goes on until it is ended; the file `started` names its process then."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        started.with_suffix(".new").write_text(str(os.getpid()))
        started.with_suffix(".new").rename(started)
        for _ in range(200):
            time.sleep(0.5)
        yield from batches

    return spark.range(0, 1, 1, 1).mapInArrow(work, "id bigint")


def ended(started: Path) -> bool:
    """Whether the process of that job is gone, some time later."""
    process = Path("/proc", started.read_text())
    for _ in range(200):
        if not process.exists():
            return True
        time.sleep(0.1)
    return False


def test_each_table_gets_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    file_writer.save({f"s.t{n}": spark.range(n) for n in range(5)}, str(tmp_path), "parquet")
    assert [pq.read_table(tmp_path / f"s.t{n}").num_rows for n in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_columns_of_a_delta_table_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a b", "c,d;{e}", "(f)=g", "h.i"]
    file_writer.save(
        {"t": spark.sql("SELECT 1, 'x', current_timestamp(), DATE'2026-11-25'").toDF(*names)},
        str(tmp_path),
        "delta",
    )
    found = spark.read.format("delta").load(str(tmp_path / "t"))
    assert (found.columns, [r[:2] for r in found.collect()]) == (names, [(1, "x")])


def test_nothing_is_written_when_a_folder_is_not_empty(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").touch()
    with pytest.raises(ConfigError, match="not empty"):
        file_writer.save({"a": spark.range(1), "b": spark.range(1)}, str(tmp_path), "parquet")
    assert not (tmp_path / "a").exists()


def test_a_table_that_fails_ends_the_others(spark: SparkSession, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not started.exists():
            time.sleep(0.05)
        raise ValueError("no such value")

    tables = {"a": endless(spark, started), "b": spark.range(0, 1, 1, 1).mapInArrow(fails, "id bigint")}
    with pytest.raises(Exception, match="no such value"):
        file_writer.save(tables, str(tmp_path / "out"), "parquet")
    assert ended(started)


@pytest.mark.slow
def test_ctrl_c_ends_all(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"

    def interrupted(*_: Any, **__: Any) -> None:
        while not started.exists():
            threading.Event().wait(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(file_writer, "wait", interrupted)
    tables = {"a": endless(spark, started), "b": spark.range(1)}
    with pytest.raises(KeyboardInterrupt):
        file_writer.save(tables, str(tmp_path / "out"), "parquet")
    assert ended(started)
