"""Durations in buckets that can be added up: the data of a Prometheus histogram."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

STEPS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds in seconds; one more bucket has everything longer."""


@dataclass
class Timings:
    """How many durations fell into each bucket (`counts`), and their sum in seconds (`seconds`).

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
