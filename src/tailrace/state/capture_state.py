"""The contents of `<home>/run/capture.json`: what the capture process is doing."""

from __future__ import annotations

import datetime as dt
import os
from bisect import bisect_left
from dataclasses import asdict, dataclass, field
from typing import Any

from ..lake import json_files
from ..model.positions import Position

STARTING, RUNNING, RECONNECTING, STOPPED = "starting", "running", "reconnecting", "stopped"
GONE = "gone"
"""Of a baseline whose table was dropped or renamed before it was read."""
AWAY = "target unreachable"
"""State of a table whose changes, or baseline, wait for the target."""
STATE_EVERY_S = 1.0
"""Seconds between two reports of a capture that runs; one that reads or commits meanwhile is later."""
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds to wait before each attempt to reconnect; the last value is repeated."""


STEPS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds in seconds; one more bucket has everything longer."""


def pause_s(attempt: int) -> float:
    """The seconds before an attempt to reconnect; the first one is number 0.

    >>> pause_s(0), pause_s(99)
    (1.0, 30.0)
    """
    return RETRY_S[min(attempt, len(RETRY_S) - 1)]


@dataclass
class Timings:
    """Number of durations in each bucket (`counts`), and their sum in seconds (`seconds`).

    >>> some = Timings()
    >>> some.add(0.3), some.add(0.5), some.add(7200)
    (None, None, None)
    >>> some.counts[:4], some.counts[-1], some.seconds
    ([0, 0, 0, 2], 1, 7200.8)
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(STEPS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Adds a duration in seconds."""
        self.counts[bisect_left(STEPS, seconds)] += 1
        self.seconds += seconds


@dataclass
class CaptureState:
    """Positions are hex, lag is bytes and seconds, rate is records a second.

    Attributes:
        state: `starting`, `running`, `reconnecting` or `stopped`.
        bytes: of the records that were committed.
        commit_seconds: how long commits to LOG took.
        read_at: when the source was last read from (Unix time); a quiet one, too.
        retained_bytes, left_bytes: log that the source keeps for the task, and how much more may come before
            it gives that up (None: never, or unknown).
        left_out: what the wildcards of the task file leave out, and why.
        message: the problem; `reconnecting`: the last error.
        waits: the transactions at the source for which a new stream or a baseline waits, in words.
        since: `reconnecting` only: when the connection was lost (UTC, ISO 8601).
        attempts: `reconnecting` only: how often it was tried since.
        ended: the error that ended it, in words.
    """

    state: str = STARTING
    pid: int = field(default_factory=os.getpid)
    position: Position | None = None
    records: int = 0
    transactions: int = 0
    bytes: int = 0
    commits: int = 0
    commit_seconds: Timings = field(default_factory=Timings)
    read_at: float | None = None
    rate: float = 0.0
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    retained_bytes: int | None = None
    left_bytes: int | None = None
    baselines: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    message: str | None = None
    waits: str | None = None
    since: str | None = None
    attempts: int = 0
    ended: str | None = None

    def runs(self) -> None:
        """The stream is being read: resets what `lost` has set.

        >>> one = CaptureState()
        >>> one.lost("no route"), one.lost("refused"), one.attempts, one.message
        (None, None, 2, 'refused')
        >>> one.runs()
        >>> one.state, one.attempts, one.since, one.message
        ('running', 0, None, None)
        """
        self.state, self.message, self.since, self.attempts = RUNNING, None, None, 0

    def lost(self, message: str) -> None:
        """The source cannot be reached, and capture retries. The lag is unknown."""
        now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        self.state, self.message, self.since = RECONNECTING, message, self.since or now
        self.attempts += 1
        self.rate, self.lag_bytes, self.lag_seconds = 0.0, None, None
        self.retained_bytes = self.left_bytes = None

    def tell(self, folder: str) -> None:
        """Replaces the file."""
        json_files.write(folder, "capture", asdict(self))
