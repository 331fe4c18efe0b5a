"""Who reads the parts of tables: threads the first few rows, then processes; or Spark's tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tailrace.capture import part_readers
from tailrace.capture.part_readers import Loaded, PartLoad, PartReaders, RequestedPart, try_read
from tailrace.errors import TailraceError
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of
from tailrace.sources.base import BaselineBatch, BaselinePart, Snapshot

pytestmark = pytest.mark.unit
RELATION = Relation(7, "s", "t", "d", (Column("pid", 1, "integer", "int4", "int", key=True),))


def own_pid(_: Snapshot, relation: Relation, __: BaselinePart) -> Iterator[BaselineBatch]:
    yield BaselineBatch(pa.record_batch([[os.getpid()]], schema=schema_of(relation.columns)), [])


def test_processes_read_what_comes_after_a_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even an empty part is counted: it costs a connection."""
    monkeypatch.setattr(part_readers, "FEW_ROWS", 3 * part_readers.PART_ROWS)
    path, here = str(tmp_path), os.getpid()
    lake.create(path, schema_of(RELATION.columns))
    load = PartLoad(own_pid, Snapshot("s", b"1"), RELATION, path, keep_bad=False)
    parts = [BaselinePart("t", 0, None, rows) for rows in (0, part_readers.PART_ROWS, 1, 1, 0)]
    with PartReaders(2) as readers:
        loaded = [readers.load(load, part) for part in parts]
    lake.commit(path, [one.added for one in (each.result() for each in loaded) if one.added], progress={})
    pids = lake.read(path)["pid"].to_pylist()
    assert (len(pids), pids.count(here)) == (5, 3)


class Tasks:
    """Stands for Spark's tasks: reads in the caller's thread, all but the last `left` parts."""

    limit = 10

    def __init__(self, state: str, left: int = 0) -> None:
        self.state, self._left, self.read_rows = state, left, list[list[int]]()

    def read(
        self, asked: Sequence[RequestedPart], done: Callable[[int, Loaded | TailraceError], None]
    ) -> None:
        self.read_rows.append([one.part.rows for one in asked])
        for at, one in enumerate(asked[: len(asked) - self._left]):
            done(at, try_read(one))


def read_by(spark: Tasks, tmp_path: Path, rows: Sequence[int]) -> list[int]:
    """The rows that the parts gave."""
    load = PartLoad(own_pid, Snapshot("s", b"1"), RELATION, str(tmp_path), keep_bad=False)
    with PartReaders(2, spark=spark) as readers:
        loaded = [readers.load(load, BaselinePart("t", at, None, each)) for at, each in enumerate(rows)]
        return [one.result(20).rows for one in loaded]


@pytest.mark.parametrize(
    ("state", "rows", "in_spark"),
    [
        ("ready", [4, 5], []),
        ("ready", [4, 5, 6], [[4, 5, 6]]),
        ("not started", [100, 300_000], []),
        ("starting", [100, 300_000], [[300_000]]),
    ],
)
def test_spark_reads_jobs_that_are_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, rows: list[int], in_spark: list[list[int]]
) -> None:
    """While the session starts threads read the first few rows, and more rows wait for it."""
    spark = Tasks(state)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: setattr(spark, "state", "ready"))
    monkeypatch.setattr("tailrace.capture.part_readers.time", clock)
    assert read_by(spark, tmp_path, rows) == [1] * len(rows)
    assert spark.read_rows == in_spark


def test_parts_that_spark_has_left_are_read_here(tmp_path: Path) -> None:
    spark = Tasks("ready", left=2)
    assert read_by(spark, tmp_path, [100, 100, 100]) == [1, 1, 1]
    assert spark.read_rows == [[100, 100, 100]]
