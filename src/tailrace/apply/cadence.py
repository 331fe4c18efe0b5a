"""When a batch is applied: often while little comes, seldom and in large batches while much comes.

After a batch at least as much time passes as the batch took, up to half a minute, so that applying takes at
most half of the time and batches grow with the backlog. A backlog does not wait for the interval of the task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

BACKLOG = 100_000
"""Changes that are worth a batch at once: their own work outweighs that of the batch."""
MOST_S = 30.0
SLACK_S = 0.3
"""Seconds that an interval may be shorter than it is set: changes that miss a batch by a moment would wait
for the next."""


@dataclass
class Cadence:
    """Says when the next batch is due; one a task.

    Attributes:
        every: returns the least time between the beginnings of two batches (seconds).
        max_changes, max_bytes: with so many changes waiting, or so many bytes of them as stored, a batch
            begins at once.

    >>> now = [0.0]
    >>> one = Cadence(lambda: 1, 1000, 1 << 20, clock=lambda: now[0])
    >>> one.due(5, 100)
    True
    >>> one.went(4.0)
    >>> now[0] = 3.9; one.due(5, 100), one.due(1000, 100), one.due(5, 1 << 20)
    (False, True, True)
    >>> now[0] = 4.0; one.due(5, 100), one.due(0, 0)
    (True, False)
    >>> one.went(0.2); round(one.wait(), 3)
    0.8
    >>> one.went(0.1, waited=0.4); round(one.wait(), 3)
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
        """Whether a batch is to begin now, with so many changes and bytes waiting."""
        if not changes:
            return False
        now = self.clock()
        if changes >= BACKLOG and now >= self._rested:
            return True
        return changes >= self.max_changes or size >= self.max_bytes or now >= self._next

    def went(self, seconds: float, waited: float = 0.0) -> None:
        """Notes that a batch has ended, which took `seconds`.

        Its newest changes had waited so long when it began: the interval is measured from their arrival, so
        the next changes that arrive at the interval are due at once.
        """
        now, every = self.clock(), self.every()
        self._rested = now + min(seconds, MOST_S)
        rest = every - seconds - waited - SLACK_S if waited else every - seconds
        self._next = now + min(max(rest, seconds), max(every, MOST_S))

    def wait(self) -> float:
        """Seconds until the next batch may begin, whatever waits; 0 when it may now."""
        return max(self._next - self.clock(), 0.0)
