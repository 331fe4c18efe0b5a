"""Functions that run in Spark's tasks, on Arrow batches.

Classes that are given to `mapInArrow` are pickled by reference, hold paths and names only, and run in
executor processes that have no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..config.spread import Work, spread
from ..lake import guards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = ("inserted", "updated", "deleted", "missing", "version", "took_us")
_TEXTS = ("file", "message", "table")
RESULT = ", ".join([*[f"{n} bigint" for n in _NUMBERS], *[f"{n} string" for n in _TEXTS], "logged binary"])
"""The columns of results; `logged`: a few rows of a key log, as an Arrow stream."""
TOO_LARGE = "too large"
"""`file` of a result: the changes take more memory than the task may use; nothing was written."""


def result(**values: Any) -> pa.RecordBatch:
    """One row of `RESULT`."""
    numbers = [pa.array([values.get(n, 0)], pa.int64()) for n in _NUMBERS]
    texts = [pa.array([values.get(n)], pa.string()) for n in _TEXTS]
    logged = pa.array([values.get("logged")], pa.binary())
    return pa.record_batch([*numbers, *texts, logged], [*_NUMBERS, *_TEXTS, "logged"])


@dataclass(frozen=True)
class _Named:
    """Gives a task's batches their column names; on the way they have plain ones, because `mapInArrow` looks
    columns up by name and stumbles over dots and back quotes."""

    task: Work
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(b.rename_columns(list(self.names)) for b in batches)


def mapped(df: DataFrame, task: Work, schema: str) -> DataFrame:
    """What a task makes of every partition, rows of `schema`."""
    plain = df.toDF(*[f"c{i}" for i in range(len(df.columns))])
    return plain.mapInArrow(guards.handed_on(_Named(task, tuple(df.columns))), schema)


@dataclass(frozen=True)
class Parts:
    """Rows that are read in parts, each by the task that needs them: `read` gives the batches of one of
    `names`. Threads of this process work on them; no JVM is needed."""

    names: tuple[str, ...]
    read: Callable[[str], Iterable[pa.RecordBatch]]

    def __call__(self, task: Work, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What a task makes of the parts of these numbers."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from task(self.read(self.names[number]))


def run(rows: DataFrame | Parts, task: Work, shape: str = RESULT) -> list[Mapping[str, Any]]:
    """Runs a task on every partition, or part; gives one row of results each (`shape`: as Spark declares
    them)."""
    if isinstance(rows, Parts):
        return spread(partial(rows, task), len(rows.names), shape)
    return [row.asDict() for row in mapped(rows, task, shape).collect()]
