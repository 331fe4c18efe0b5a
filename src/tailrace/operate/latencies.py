"""Percentiles of any number of latencies in little memory: they are counted in buckets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STEP = 0.01
"""Width of a bucket relative to its latencies: percentiles are accurate to within one bucket."""


class Latencies:
    """Latencies in microseconds; `many`, `total`, `most` and the number of `negative` ones are exact.

    >>> some = Latencies()
    >>> some.add(np.array([1000.0, 2000.0, 3000.0]))
    >>> round(some.at(0.5), 1), some.most
    (2.0, 3000.0)
    """

    def __init__(self) -> None:
        self.many, self.total, self.most, self.negative = 0, 0.0, 0.0, 0
        self._steps: dict[int, int] = {}

    def add(self, took: npt.NDArray[np.float64]) -> None:
        """Adds latencies in microseconds."""
        self.most = max(self.most, float(took.max())) if self.many else float(took.max())
        self.many, self.total = self.many + len(took), self.total + float(took.sum())
        self.negative += int((took < 0).sum())
        steps = np.floor(np.log(np.maximum(took, 1.0)) / np.log1p(STEP)).astype(np.int64)
        for step, many in zip(*np.unique(steps, return_counts=True), strict=True):
            self._steps[int(step)] = self._steps.get(int(step), 0) + int(many)

    def at(self, share: float) -> float:
        """The latency, in milliseconds, that this share of all latencies does not exceed."""
        wanted, seen, step = share * self.many, 0, 0
        for step in sorted(self._steps):
            seen += self._steps[step]
            if seen >= wanted:
                break
        return float(min((1 + STEP) ** (step + 0.5), max(self.most, 1.0))) / 1000
