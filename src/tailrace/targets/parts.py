"""Functions that run in tasks, on Arrow batches, and the rows of results that they give.

Classes of tasks are pickled by reference, hold paths and names only, and run in executor processes that have
no session.
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
"""The columns of results: rows that were written, and the file that has them (`AddedFile`, as JSON)."""


def result(*, file: str | None, inserted: int = 0) -> pa.RecordBatch:
    """One row of `RESULT`."""
    return pa.record_batch(
        [pa.array([inserted], pa.int64()), pa.array([file], pa.string())], ["inserted", "file"]
    )


BASELINE = Job("baseline", "baseline")


@dataclass(frozen=True)
class Parts:
    """Rows that are read in parts, each by the task that needs them; no JVM is needed.

    Attributes:
        names: names of the parts.
        read: gives the batches of one of them; picklable.
        session: whose tasks may read them; job: the step, as `map_tasks` takes them.
    """

    names: tuple[str, ...]
    read: Callable[[str], Iterable[pa.RecordBatch]]
    session: SparkSession | None = None
    job: Job = BASELINE


def run(rows: DataFrame | Parts, task: Work, shape: str = RESULT) -> list[Mapping[str, Any]]:
    """Runs a task on every partition, or part; gives one row of results each (`shape`: as Spark declares
    them)."""
    if isinstance(rows, Parts):
        one = partial(_of_part, task, rows.read)
        found = map_tasks(one, rows.names, session=rows.session, job=rows.job)
        return [row for each in found for row in each]
    return [row.asDict() for row in over_rows(rows, task, shape).collect()]


def _of_part(
    task: Work, read: Callable[[str], Iterable[pa.RecordBatch]], name: str
) -> list[Mapping[str, Any]]:
    return [row for batch in task(read(name)) for row in batch.to_pylist()]
