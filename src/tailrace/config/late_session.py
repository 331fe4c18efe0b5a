"""A Spark session of this machine that starts when something needs it: most tasks never do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("tailrace.spark")


class LateSession:
    """Stands for a session (`as_session`) that starts with the first thing it is asked for.

    Args:
        start: starts it; called once, by whichever thread is the first to need it.

    >>> late = LateSession(lambda: print("starts") or {"a": 1})
    >>> late.started, sorted(late.items()), late.started
    starts
    (False, [('a', 1)], True)
    """

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start, self._lock = start, threading.Lock()
        self._session: SparkSession | None = None
        self._took = 0.0

    @property
    def took(self) -> float:
        """Seconds that its start took; 0 before."""
        return self._took

    @property
    def started(self) -> bool:
        """Whether something needed it."""
        return self._session is not None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._session is None:
                logger.info("Spark starts")
                began = time.monotonic()
                self._session = self._start()
                self._took = time.monotonic() - began
        return getattr(self._session, name)

    @property
    def as_session(self) -> SparkSession:
        """The same, for type checkers."""
        return self  # type: ignore[return-value]


def seconds_to_start(spark: SparkSession) -> float:
    """Seconds that the start of a late session has taken so far; 0 for others."""
    return spark.took if isinstance(spark, LateSession) else 0.0


def is_started(spark: SparkSession) -> bool:
    """Whether a session runs; every one does that is not late."""
    return not isinstance(spark, LateSession) or spark.started
