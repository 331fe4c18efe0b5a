"""The sizes to which small files of a table are joined, in steps: a row is rewritten once per tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

TIERS = (1 << 20, 16 << 20, 128 << 20)
"""Sizes in bytes."""


def due_size(sizes: Iterable[int], small_files: int, tiers: Sequence[int] = TIERS) -> int | None:
    """Returns the size to which smaller files are joined: the greatest tier with at least `small_files` (and
    at least two) files; None if no tier has as many.

    >>> due_size([10, 20, 30], 3), due_size([10, 2 << 20, 30], 3)
    (1048576, None)
    """
    known = list(sizes)
    counts = [sum(low <= size < high for size in known) for low, high in pairwise([0, *tiers])]
    due = [high for high, many in zip(tiers, counts, strict=True) if many >= max(small_files, 2)]
    return due[-1] if due else None
