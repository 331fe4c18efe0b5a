"""Numbered work side by side: by threads of this process, or by Spark's tasks.

Work that names what it reads, so that no row passes the JVM, needs Spark for other machines alone. On one
machine threads do it: Arrow and NumPy let them run at the same time, and no Python worker has to start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..lake import guards
from .lanes import lanes
from .late_session import LateSession
from .machine import cores, one_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Makes Arrow batches of Arrow batches. It can be pickled, to be one of Spark's."""


def cluster(spark: SparkSession | None) -> SparkSession | None:
    """A session, if its tasks run on other machines or in other processes than this one's; else None."""
    if spark is None or isinstance(spark, LateSession) or one_machine(spark.conf.get("spark.master") or ""):
        return None
    return spark


def side_by_side(spark: SparkSession | None) -> int:
    """How many tasks do such work at the same time: one for each core of this machine, or of the cluster."""
    return cores() if spark is None else max(cores(), spark.sparkContext.defaultParallelism)


def spread(task: Work, many: int, shape: str, spark: SparkSession | None = None) -> list[Mapping[str, Any]]:
    """What a task gives for the numbers from 0 to `many`, exclusive, in their order.

    Args:
        task: the work; it gets numbers, in one column.
        many: how many numbers there are.
        shape: the rows that it gives, as Spark declares them (`"n bigint, file string"`).
        spark: whose tasks do it; None: threads of this process do.

    >>> def squares(batches):
    ...     for batch in batches:
    ...         yield pa.record_batch([pa.array([n * n for n in batch.column(0).to_pylist()])], ["n"])
    >>> spread(squares, 3, "n bigint")
    [{'n': 0}, {'n': 1}, {'n': 4}]
    """
    if spark is None:
        with lanes("spread", worth=many > 1) as pool:
            return [row for rows in pool.map(partial(_answers, task), range(many)) for row in rows]
    numbers = spark.range(0, many, 1, min(many, side_by_side(spark)))
    # Few rows by nature: results, never data.
    return [row.asDict() for row in numbers.mapInArrow(guards.handed_on(task), shape).collect()]


def _answers(task: Work, number: int) -> list[dict[str, Any]]:
    numbers = pa.record_batch([pa.array([number], pa.int64())], ["number"])
    return [row for batch in task(iter([numbers])) for row in batch.to_pylist()]
