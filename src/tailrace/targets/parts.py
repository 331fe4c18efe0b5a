"""Runs functions on Arrow batches in tasks, and collects the rows that they return.

Task classes are pickled by reference and hold only paths and names. They run in executor processes, which
have no Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..execution import Job, Work, map_tasks, over_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = "inserted bigint, file string"
"""The columns of results: the number of written rows, and their file (`AddedFile` as JSON)."""


def result(*, file: str | None, inserted: int = 0) -> pa.RecordBatch:
    """Returns one row of `RESULT`."""
    return pa.record_batch(
        [pa.array([inserted], pa.int64()), pa.array([file], pa.string())], ["inserted", "file"]
    )


BASELINE = Job("baseline", "baseline")


@dataclass(frozen=True)
class Parts:
    """Rows in parts, each of which a task reads by name without the JVM.

    Attributes:
        names: the names of the parts.
        read: returns the batches of a part; picklable.
        session: the session whose tasks may read parts, see `map_tasks`.
        job: the step, see `map_tasks`.
    """

    names: tuple[str, ...]
    read: Callable[[str], Iterable[pa.RecordBatch]]
    session: SparkSession | None = None
    job: Job = BASELINE


def run(rows: DataFrame | Parts, task: Work, shape: str = RESULT) -> list[Mapping[str, Any]]:
    """Runs a task on every partition or part. Returns the rows of all results; `shape`: their Spark
    schema."""
    if isinstance(rows, Parts):
        run_part = partial(_run_part, task, rows.read)
        found = map_tasks(run_part, rows.names, session=rows.session, job=rows.job)
        return [row for each in found for row in each]
    return [row.asDict() for row in over_rows(rows, task, shape).collect()]


def _run_part(
    task: Work, read: Callable[[str], Iterable[pa.RecordBatch]], name: str
) -> list[Mapping[str, Any]]:
    return [row for batch in task(read(name)) for row in batch.to_pylist()]
