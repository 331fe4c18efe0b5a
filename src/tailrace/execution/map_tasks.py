"""Runs a task for each of some inputs: as tasks of Spark, or on threads of the driver.

A task is plain code that can run in another process on another host: it is a picklable callable of a module,
gets one input (file names, ranges, numbers) and returns one typed, small result. It assumes nothing of the
driver's memory, folders or environment. Small steps run in the driver, because a job costs more than they do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..config.machine import DRIVER_LIMIT, cores
from ..errors import SparkLostError
from . import driver, spark
from .job import Job, count_driver
from .session import background, is_lost, ready_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("tailrace.spark")
_I = TypeVar("_I")
_R = TypeVar("_R")


def executor_of(session: SparkSession | None, changes: int) -> SparkSession | None:
    """The running session whose tasks should do a step of so many changes; None if the driver should.

    The driver does steps below the session's `driver_limit`, and all steps while no session runs.
    """
    there = ready_session(session)
    if there is None:
        return None
    found = background(session)
    limit = found.driver_limit if found else DRIVER_LIMIT
    return there if changes >= limit else None


def slots(session: SparkSession | None) -> int:
    """The number of tasks that run at the same time in a session; in the driver if there is none."""
    if session is None:
        return cores()
    try:
        return spark.slots(session)
    except Exception:
        if not is_lost(session):
            raise
        return cores()  # `map_tasks` notices, too


def map_tasks(
    task: Callable[[_I], _R],
    inputs: Sequence[_I],
    *,
    session: SparkSession | None,
    job: Job,
    weights: Sequence[int] | None = None,
    at_once: int | None = None,
) -> list[_R]:
    """The results of a task for all inputs, in their order.

    Args:
        task: a picklable callable; see above.
        inputs: what each call gets; picklable.
        session: the session that may run the tasks; None: the driver does.
        job: the step; `executor_of` decides by its changes.
        weights: the relative cost of each input. Many light inputs share a task of Spark then.
        at_once: the maximum number of calls that run at the same time; None: as many as there are slots.

    Raises:
        TailraceError: raised by the task, as the task raised it.

    >>> map_tasks(abs, [-1, 2, -3], session=None, job=Job("store", "store 3 changes", 3))
    [1, 2, 3]
    """
    there = executor_of(session, job.changes) if inputs else None
    if there is not None:
        try:
            return spark.run(session or there, there, task, inputs, job, weights, at_once)
        except Exception as error:
            if not is_lost(there):
                raise
            found = background(session)
            if found is None:
                raise SparkLostError(
                    "Spark's JVM is gone", where=job.text, hint="start Spark again"
                ) from error
            found.replace_lost(job.text)
    count_driver(job)
    return driver.run(task, inputs, job.kind, at_once)
