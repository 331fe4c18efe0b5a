"""When a batch is applied: often while little comes, seldom and in large batches while much comes.

Three settings, as in Qlik's batch tuning (spec/qlik.md §4): longer than, but less than, at once at so many
changes or bytes. In between it adapts: after a batch at least as much time goes by as the batch took, so that
applying takes at most half of the time and batches grow with the backlog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic


@dataclass
class Cadence:
    """Says when the next batch is due; one a task.

    Attributes:
        every: at least so many seconds lie between the beginnings of two batches.
        within: and at most so many between a batch and the next, however long batches take.
        max_changes, max_bytes: with so many changes waiting, or so many bytes of them as stored, a batch
            begins at once.

    >>> now = [0.0]
    >>> one = Cadence(1, 30, 1000, 1 << 20, clock=lambda: now[0])
    >>> one.due(5, 100)
    True
    >>> one.went(4.0)
    >>> now[0] = 3.9; one.due(5, 100), one.due(1000, 100), one.due(5, 1 << 20)
    (False, True, True)
    >>> now[0] = 4.0; one.due(5, 100), one.due(0, 0)
    (True, False)
    >>> one.went(0.2); round(one.wait(), 3)
    0.8
    """

    every: float
    within: float
    max_changes: int
    max_bytes: int
    clock: Callable[[], float] = field(default=monotonic, repr=False)
    _next: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._next = self.clock()

    def due(self, changes: int, size: int) -> bool:
        """Whether a batch is to begin now, with so many changes and bytes waiting."""
        if not changes:
            return False
        return changes >= self.max_changes or size >= self.max_bytes or self.clock() >= self._next

    def went(self, seconds: float) -> None:
        """A batch has ended, which took so long."""
        self._next = self.clock() + min(max(self.every - seconds, seconds), max(self.every, self.within))

    def wait(self) -> float:
        """Seconds until the next batch may begin, whatever waits; 0 when it may now."""
        return max(self._next - self.clock(), 0.0)
