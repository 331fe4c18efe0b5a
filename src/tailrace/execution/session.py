"""A Spark session that starts in the background.

Until it has started and warmed up, and after it was lost, the driver does the work. Code that needs Spark's
SQL waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..config import logs
from ..config.machine import DRIVER_LIMIT
from ..errors import START_SPARK_AGAIN, CancelledError, SparkLostError, not_of_a_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("tailrace.spark")
RESTARTS = 3
"""The maximum number of times that a lost session is started again."""


class BackgroundSession:
    """A proxy for a session (`as_session`).

    Args:
        start: starts the session; called by one thread at a time, and again after the session was lost.
        warm_up: runs the first jobs, so that the pipeline's jobs do not wait for executors' Python.
        driver_limit: see `DRIVER_LIMIT`.
        given: a session that already runs; it is used as it is, and never replaced.
        when_needed: `begin` starts nothing; the session starts when code needs Spark's SQL.

    >>> late = BackgroundSession(lambda: print("starts") or {"a": 1})
    >>> late.ready, sorted(late.items()), late.ready
    starts
    (None, [('a', 1)], None)
    """

    def __init__(
        self,
        start: Callable[[], SparkSession],
        *,
        warm_up: Callable[[SparkSession], None] = lambda _: None,
        driver_limit: int = DRIVER_LIMIT,
        given: SparkSession | None = None,
        when_needed: bool = False,
    ) -> None:
        self._start, self._warm_up, self.driver_limit = start, warm_up, driver_limit
        self._starting, self._replacing = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._session, self._warm, self._given = given, False, given is not None
        self._when_needed = when_needed
        self._failure: BaseException | None = None
        self._losses = 0
        self._described: dict[str, str] = {}
        self.cancelled = False
        self.tags: set[str] = set()
        self.waited = 0.0
        """Seconds that the pipeline's threads have waited for the start."""

    def begin(self) -> None:
        """Starts the session and warms it up in a separate thread."""
        if self._thread is None and not self._when_needed:
            self._thread = threading.Thread(target=self._start_and_warm_up, daemon=True, name="spark start")
            self._thread.start()

    def _start_and_warm_up(self) -> None:
        try:
            session = self._started()
            self._warm_up(session)
            self._warm = True
            said = self.describe()
            ui = f", its UI is at {said['ui']}" if said.get("ui") else ""
            logs.event("Spark %s runs the tasks on %s%s", said["version"], said["master"], ui)
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._failure = error

    def check(self) -> None:
        """Raises the error of the start in the background, if it failed."""
        if self._failure is not None and not self.cancelled:
            raise self._failure

    @property
    def running(self) -> SparkSession | None:
        """The session, if it has started."""
        return self._session

    @property
    def ready(self) -> SparkSession | None:
        """The running session whose tasks may be used; None while it starts or warms up, after it was lost,
        and if it was started only for Spark's SQL."""
        return self._session if self._warm else None

    @property
    def state(self) -> str:
        """`not started`, `starting`, `ready`, `lost` (it is started again) or `failed`."""
        if self._failure is not None:
            return "failed"
        if self.ready is not None:
            return "ready"
        if self._losses:
            return "lost"
        return "starting" if self._thread is not None else "not started"

    def _started(self) -> SparkSession:
        with self._starting:
            if (session := self._session) is None:
                logger.info("Spark starts")
                began = time.monotonic()
                with not_of_a_table():
                    self._session = session = self._start()
                if threading.current_thread() is not self._thread:
                    self.waited += time.monotonic() - began
            return session

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._started(), name)

    @property
    def as_session(self) -> SparkSession:
        """The same object, for type checkers."""
        return self  # type: ignore[return-value]

    def replace_lost(self, lost: SparkSession, where: str) -> None:
        """Starts another session in the background after the JVM of `lost` was killed; the driver works in
        the meantime. Does nothing if another thread has noticed it before.

        Raises:
            SparkLostError: this process has lost too many sessions.
        """
        with self._replacing:
            if self._session is not lost:
                return
            self._losses += 1
            if self._given or self._losses > RESTARTS:
                raise SparkLostError(
                    f"Spark's JVM was lost {self._losses} times"
                    if not self._given
                    else "Spark's JVM is gone",
                    where=where,
                    hint=START_SPARK_AGAIN,
                )
            self._session, self._warm, self._thread, self._described = None, False, None, {}
        logger.warning(
            "Spark's JVM is gone: the driver continues the work, and another session starts",
            extra={"where": where},
        )
        self.begin()

    def replaced(self, where: str) -> bool:
        """Returns True if the session was lost and another one starts; False if it runs.

        Raises:
            SparkLostError: see `replace_lost`.
        """
        session = self._session
        if session is not None and not is_lost(session):
            return False
        if session is not None:
            self.replace_lost(session, where)
        return True

    def cancel_when(self, stop: threading.Event) -> None:
        """Cancels the jobs of this process once `stop` is set; waits for it in a separate thread."""

        def watch() -> None:
            stop.wait()
            self.cancel()

        threading.Thread(target=watch, daemon=True, name="spark cancel").start()

    def describe(self) -> dict[str, str]:
        """Returns the `state` of the session and, once it runs, Spark's `version`, its `master`, and the
        address of its `ui` (empty without one)."""
        found, session = {"state": self.state}, self._session
        if session is None or not self._warm:
            return found
        if not self._described:
            context = getattr(session, "sparkContext", None)
            master, ui = getattr(context, "master", "") or "", getattr(context, "uiWebUrl", "") or ""
            self._described = {"version": str(session.version), "master": str(master), "ui": str(ui)}
        return found | self._described

    def add_tag(self, tag: str, where: str) -> None:
        """Records the tag of jobs that are about to start.

        Raises:
            CancelledError: the jobs of this session were cancelled.
        """
        if self.cancelled:
            raise self.cancelled_error(where)
        self.tags.add(tag)

    def cancelled_error(self, where: str) -> CancelledError:
        """Returns the error of a cancelled job."""
        return CancelledError("the job was cancelled, because the task ends", where=where)

    def cancel(self) -> None:
        """Cancels the jobs of this session, and those that it would start later."""
        self.cancelled = True
        if (session := self._session) is not None:
            with suppress(Exception):  # it may be gone
                for tag in tuple(self.tags):
                    session.sparkContext.cancelJobsWithTag(tag)


def background(session: SparkSession | BackgroundSession | None) -> BackgroundSession | None:
    """Returns the session if it is a background session; otherwise None."""
    return session if isinstance(session, BackgroundSession) else None


def ready_session(session: SparkSession | BackgroundSession | None) -> SparkSession | None:
    """Returns the running session; None if no session runs (yet)."""
    return session.ready if isinstance(session, BackgroundSession) else session


def seconds_waited(session: SparkSession | BackgroundSession) -> float:
    """Returns the seconds that threads have waited for a background session to start; 0 for other
    sessions."""
    return session.waited if isinstance(session, BackgroundSession) else 0.0


def has_started(session: SparkSession | BackgroundSession) -> bool:
    """Whether a session runs."""
    return not isinstance(session, BackgroundSession) or session.running is not None


def has_rdds(session: SparkSession) -> bool:
    """Whether a session has RDDs; one through Spark Connect does not."""
    module = type(session).__module__
    return module.startswith("pyspark.sql") and "connect" not in module


def is_lost(session: SparkSession) -> bool:
    """Whether a session's JVM, or its server, has ended."""
    try:
        if has_rdds(session):
            return bool(session.sparkContext._jsc.sc().isStopped())
        return not session.version
    except Exception:  # noqa: BLE001 - nothing answers
        return True
