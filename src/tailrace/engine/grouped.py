"""Sorts rows by key number: first into groups of keys, then within each group.

NumPy sorts 16-bit numbers by counting, many times faster than by comparison. Working group by group also
needs little memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
BITS = 16
"""The number of low bits of a key number that do not select its group."""


def groups(numbers: Ints, without: Ints) -> list[Ints]:
    """Returns the indexes of numbers (0, 1, ...) in groups of neighbouring numbers, in order within a group.

    `without` are indexes to leave out.

    >>> [g.tolist() for g in groups(np.array([70_000, 0, 1, 70_000, 0]), np.array([1]))]
    [[2, 4], [0, 3]]
    """
    high = (numbers >> BITS).astype(np.uint16)
    order = np.argsort(high, kind="stable") if high.any() else np.arange(len(numbers))
    if len(without):
        taking = np.ones(len(numbers), np.bool_)
        taking[without] = False
        order = order[taking[order]]
    return np.split(order, np.cumsum(np.bincount(high[order]))[:-1])


def sorted_group(numbers: Ints, group: Ints) -> Ints:
    """Returns a group's indexes sorted by number, stably.

    >>> sorted_group(np.array([1, 0, 1, 0]), np.array([0, 1, 3])).tolist()
    [1, 3, 0]
    """
    return group[np.argsort(numbers[group].astype(np.uint16), kind="stable")]
