"""The first Python worker of a session. It starts while the first plan is made: either takes a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ..config.machine import DRIVER_LIMIT
from ..execution import Job, map_tasks, over_rows, slots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def start(spark: SparkSession) -> None:
    """Has a task run in a thread of its own, and goes on. A session that cannot run it says so when it runs
    the command's own tasks."""
    threading.Thread(target=_run, args=(spark,), daemon=True, name="first worker").start()


def warm_up(spark: SparkSession) -> None:
    """Runs a first job with a task for each slot, and waits: then Python workers have started and loaded
    what tasks need."""
    job = Job("warm-up", "start Python workers", DRIVER_LIMIT, counts=False)
    map_tasks(_loaded, range(slots(spark)), session=spark, job=job)


def _loaded(number: int) -> int:
    """Loads what nearly all tasks need; the worker keeps it."""
    from ..apply.targets.delta import many  # noqa: F401
    from ..store import running  # noqa: F401

    return number


def _run(spark: SparkSession) -> None:
    with suppress(Exception):  # the session ended, or has no workers: see `start`
        over_rows(spark.range(1).coalesce(1), _ready, "id long").collect()


def _ready(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Loads what nearly all tasks need; the worker keeps it."""
    from ..formats import text  # noqa: F401

    yield from batches
