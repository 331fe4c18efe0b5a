"""Finds connected components of keys that are linked by changes of key, and so must be decided together."""

from __future__ import annotations

import numpy as np

from .events import Ints


def linked(old: Ints, new: Ints) -> tuple[Ints, Ints]:
    """Returns the linked keys, and for each the least key of its component.

    >>> [found.tolist() for found in linked(np.array([3, 5, 9]), np.array([5, 1, 8]))]
    [[1, 3, 5, 8, 9], [1, 1, 1, 8, 8]]
    """
    keys, place = np.unique(np.concatenate([old, new]), return_inverse=True)
    one, other = place[: len(old)], place[len(old) :]
    least = np.arange(len(keys))
    while True:
        low = np.minimum(least[one], least[other])
        found = least.copy()
        for side in (one, other):
            np.minimum.at(found, least[side], low)
            np.minimum.at(found, side, low)
        while (found[found] != found).any():
            found = found[found]
        if (found == least).all():
            return keys, keys[least]
        least = found
