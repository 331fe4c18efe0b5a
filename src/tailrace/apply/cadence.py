"""The times of batches: small and frequent with few changes, large and rare with many.

After a batch, apply pauses for at least as long as the batch took, up to half a minute. So it works at most
half of the time, and batches grow with the backlog. A backlog does not wait for the interval of the task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

BACKLOG = 100_000
"""With this number of changes a batch starts at once: they take longer than the fixed work of a batch."""
MOST_S = 30.0
SLACK_S = 0.3
"""Seconds by which an interval may be shorter than its setting: changes that arrive a moment too late would
wait for the next one."""


@dataclass
class Cadence:
    """Decides when the next batch of a task is due.

    Attributes:
        every: returns the least time between the starts of two batches (seconds).
        max_changes: the number of waiting changes at which a batch starts at once.
        max_bytes: the size of waiting changes, as stored, at which a batch starts at once.
        clock: returns the time in seconds.

    >>> now = [0.0]
    >>> one = Cadence(lambda: 1, 1000, 1 << 20, clock=lambda: now[0])
    >>> one.due(5, 100)
    True
    >>> one.ended(4.0)
    >>> now[0] = 3.9; one.due(5, 100), one.due(1000, 100), one.due(5, 1 << 20)
    (False, True, True)
    >>> now[0] = 4.0; one.due(5, 100), one.due(0, 0)
    (True, False)
    >>> one.ended(0.2); round(one.wait(), 3)
    0.8
    >>> one.ended(0.1, waited=0.4); round(one.wait(), 3)
    0.2
    """

    every: Callable[[], float]
    max_changes: int
    max_bytes: int
    clock: Callable[[], float] = field(default=monotonic, repr=False)
    _next: float = field(default=0.0, init=False, repr=False)
    _rested: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._next = self._rested = self.clock()

    def due(self, changes: int, size: int) -> bool:
        """Whether a batch is to start now, given the number and the size of the waiting changes."""
        if not changes:
            return False
        now = self.clock()
        if changes >= BACKLOG and now >= self._rested:
            return True
        return changes >= self.max_changes or size >= self.max_bytes or now >= self._next

    def ended(self, seconds: float, waited: float = 0.0) -> None:
        """Notes that a batch has ended, which took `seconds`.

        `waited`: how long its newest changes had waited when it started. The interval is measured from their
        arrival, so changes that arrive after exactly one interval are due at once.
        """
        now, every = self.clock(), self.every()
        self._rested = now + min(seconds, MOST_S)
        rest = every - seconds - waited - SLACK_S if waited else every - seconds
        self._next = now + min(max(rest, seconds), max(every, MOST_S))

    def wait(self) -> float:
        """Seconds until the next batch may start, whatever waits; 0 if it may start now."""
        return max(self._next - self.clock(), 0.0)
