"""Runs a task for each input: as tasks of Spark, or on threads of the driver.

A task is plain code that can run in another process on another host. It is a picklable callable of a module;
it gets one input (file names, ranges, numbers) and returns one small, typed result. It does not depend on the
driver's memory, folders or environment. Small steps run in the driver, because a Spark job would cost more.
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
    """Returns the running session whose tasks should run a step with this number of changes; None for the
    driver.

    The driver runs steps below the session's `driver_limit`, and all steps while no session runs.
    """
    running = ready_session(session)
    if running is None:
        return None
    found = background(session)
    limit = found.driver_limit if found else DRIVER_LIMIT
    return running if changes >= limit else None


def slots(session: SparkSession | None) -> int:
    """Returns the number of tasks that run at once in a session, or in the driver if no session runs."""
    if session is None:
        return cores()
    try:
        return spark.slots(session)
    except Exception:
        if not is_lost(session):
            raise
        return cores()  # `map_tasks` handles the loss


def map_tasks(
    task: Callable[[_I], _R],
    inputs: Sequence[_I],
    *,
    session: SparkSession | None,
    job: Job,
    weights: Sequence[int] | None = None,
    at_once: int | None = None,
) -> list[_R]:
    """Returns the results of a task for all inputs, in their order.

    Args:
        task: a picklable callable; see above.
        inputs: the argument of each call; picklable.
        session: the session that may run the tasks; None: the driver runs them.
        job: the step; the number of its changes decides where it runs (`executor_of`).
        weights: the relative cost of each input; one Spark task then gets several light inputs.
        at_once: the maximum number of concurrent calls; None: the number of slots.

    Raises:
        TailraceError: raised by the task, as the task raised it.

    >>> map_tasks(abs, [-1, 2, -3], session=None, job=Job("store", "store 3 changes", 3))
    [1, 2, 3]
    """
    running = executor_of(session, job.changes) if inputs else None
    if running is not None:
        try:
            return spark.run(session or running, running, task, inputs, job, weights, at_once)
        except Exception as error:
            if not is_lost(running):
                raise
            found = background(session)
            if found is None:
                raise SparkLostError(
                    "Spark's JVM is gone", where=job.text, hint="start Spark again"
                ) from error
            found.replace_lost(running, job.text)
    count_driver(job)
    return driver.run(task, inputs, job.kind, at_once)
