"""The Spark session of a validation or a repair."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, cast

from ..errors import TailraceError
from ..execution import BackgroundSession, background, has_started
from ..model.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Sessions:
    """A session: its tasks work once it is ready, and what needs Spark's SQL waits for it.

    Attributes:
        background: the session.
        steps: gets a message if something waits for its start.
        failures: errors with which its start has ended.
    """

    background: BackgroundSession | SparkSession
    steps: Steps = field(default_factory=Steps)
    failures: list[TailraceError] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def tasks(self) -> SparkSession:
        """The session as `execution.map_tasks` takes it."""
        return cast("SparkSession", self.background)

    def waiting(self, why: str) -> SparkSession:
        """The session for code that may need it; if nothing starts it in the background, a message says why
        it starts."""
        late = background(self.tasks)
        if late is None or late.state != "not started" or has_started(late):
            return self.tasks
        return BackgroundSession(lambda: self.sql(why)).as_session

    def sql(self, why: str) -> SparkSession:
        """The session, started by now; `why`: what needs it, for the message."""
        with self._lock:  # tables are prepared in parallel
            if not has_started(self.background):
                self.steps.now(f"starting Spark: {why}")
                try:
                    assert self.background.version  # noqa: S101 - waits for the start
                except TailraceError as error:
                    self.failures.append(error)
                    raise
        return self.tasks
