"""The first Python worker of a session. It starts while the first plan is made: either takes a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..execution import check_executors, over_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

LOADED = ("tailrace.apply.targets.delta.many", "tailrace.store.running")
"""Modules that nearly all tasks need."""


def start(spark: SparkSession) -> None:
    """Has a task run in a thread of its own, and goes on. A session that cannot run it says so when it runs
    the command's own tasks."""
    threading.Thread(target=_run, args=(spark,), daemon=True, name="first worker").start()


def warm_up(spark: SparkSession, shared: Sequence[str] = ()) -> None:
    """Runs a first job with a task for each slot, and waits: then Python workers have started and loaded
    what tasks need. `shared`: folders that executors need, too.

    Raises:
        ConfigError: executors' Python does not fit the driver's (see `check_executors`).
    """
    check_executors(spark, LOADED, shared)


def _run(spark: SparkSession) -> None:
    with suppress(Exception):  # the session ended, or has no workers: see `start`
        over_rows(spark.range(1).coalesce(1), _ready, "id long").collect()


def _ready(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Loads what nearly all tasks need; the worker keeps it."""
    from ..formats import text  # noqa: F401

    yield from batches
