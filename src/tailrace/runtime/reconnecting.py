"""Retries work on a target that does not answer, after growing pauses, and reports it."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable
from typing import Any

from ..errors import TargetLostError
from ..state.capture_state import RECONNECTING, pause_s

logger = logging.getLogger("tailrace.pipeline")


class Reconnecting:
    """Calls work on a target that may be unreachable.

    Args:
        over: ends the pauses.
        waits: whether to wait for a target that does not answer; called each time, because a baseline may
            have reached the target in the meantime.
    """

    def __init__(self, over: threading.Event, waits: Callable[[], bool]) -> None:
        self._over, self._waits = over, waits
        self._attempts, self._since, self._message = 0, "", ""

    def __call__(self, work: Callable[[], object]) -> bool:
        """Calls `work`; returns False if the target did not answer and it is time to try again.

        Raises:
            TargetLostError: the target was never reached, so its address may be wrong.
        """
        try:
            work()
        except TargetLostError as error:
            if not self._attempts and not self._waits():
                raise
            self._wait(error)
            return False
        if self._attempts:
            logger.warning("the target answers again")
        self._attempts = 0
        return True

    def _wait(self, error: TargetLostError) -> None:
        if not self._attempts:
            self._since = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        seconds = pause_s(self._attempts)
        self._message = error.what
        self._attempts += 1
        logger.warning("%s; trying again in %.0f s", error.what, seconds, extra={"attempt": self._attempts})
        self._over.wait(seconds)

    @property
    def reported_state(self) -> dict[str, Any]:
        """The entries of the pipeline's state (`state.capture_state`); empty while the target answers."""
        if not self._attempts:
            return {}
        return {
            "state": RECONNECTING,
            "since": self._since,
            "attempts": self._attempts,
            "message": self._message,
        }
