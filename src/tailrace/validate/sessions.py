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
    """The Spark session of a validation. Its tasks run once it is ready; only Spark SQL waits for its start.

    Attributes:
        background: the session.
        steps: receives a message when something waits for the start.
        failures: the errors of failed starts.
    """

    background: BackgroundSession | SparkSession
    steps: Steps = field(default_factory=Steps)
    failures: list[TailraceError] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def tasks(self) -> SparkSession:
        """The session, for `execution.map_tasks`."""
        return cast("SparkSession", self.background)

    def waiting(self, why: str) -> SparkSession:
        """Returns the session for code that may need it. If nothing starts it in the background, its start is
        reported with `why`."""
        late = background(self.tasks)
        if late is None or late.state != "not started" or has_started(late):
            return self.tasks
        return BackgroundSession(lambda: self.sql(why)).as_session

    def sql(self, why: str) -> SparkSession:
        """Returns the started session; `why` is the reason shown while it starts."""
        with self._lock:  # tables are prepared in parallel
            if not has_started(self.background):
                self.steps.now(f"starting Spark: {why}")
                try:
                    assert self.background.version  # noqa: S101 - waits for the start
                except TailraceError as error:
                    self.failures.append(error)
                    raise
        return self.tasks
