"""Finds gaps in LOG: its records are numbered 1, 2, 3, ..., so missing ones are known exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, PositionError
from ..lake import delta as lake
from ..lake import log as landed
from ..lake.opened import open_table
from .kept import spans

Run = tuple[int, int]
"""First and last of consecutive numbers."""


def runs(numbers: npt.NDArray[np.int64]) -> list[Run]:
    """Returns the runs of consecutive numbers, in order.

    >>> runs(np.array([7, 5, 6, 9, 9]))
    [(5, 7), (9, 9)]
    """
    if not len(numbers):
        return []
    found = np.unique(numbers)
    ends = np.flatnonzero(np.diff(found) > 1)
    starts = found[np.r_[0, ends + 1]]
    return list(zip(starts.tolist(), found[np.r_[ends, len(found) - 1]].tolist(), strict=True))


def joined(found: Iterable[Run]) -> list[Run]:
    """Merges runs that touch or overlap.

    >>> joined([(7, 9), (1, 4), (5, 6), (8, 8), (12, 12)])
    [(1, 9), (12, 12)]
    """
    merged: list[Run] = []
    for first, last in sorted(found):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def missing(after: int, present: Iterable[Run]) -> list[Run]:
    """Returns the numbers that were not found, from `after` + 1 (for -1 and 0: from 1) to the greatest one
    found.

    >>> missing(-1, [(3, 5), (9, 9)]), missing(2, [(3, 5)]), missing(7, [])
    ([(1, 2), (6, 8)], [], [])
    """
    found: list[Run] = []
    for first, last in joined(present):
        expected = max(after, 0) + 1
        if first > expected:
            found.append((expected, first - 1))
        after = max(after, last)
    return found


def holes(log: str, after: int) -> list[Run]:
    """Returns the change numbers after `after` that LOG has assigned, but whose records are in none of its
    files.

    Raises:
        PositionError: LOG ends before `after`: it is another one.
    """
    newest = landed.state(log).number
    if after > newest:
        raise PositionError(
            f"LOG ends at change number {newest}, but it was stored up to {after}",
            where=log,
            hint="LOG was removed or replaced: restore it, or give the task a new home",
        )
    fs, folder = lake.filesystem(log)
    found = spans(open_table(log), "CHANGE_SEQ")
    if not all(s.known for s in found):  # files of another writer; each batch is checked in any case
        return []
    mine = [s for s in found if s.high > after]
    facts = fs.get_file_info([f"{folder}/{s.path}" for s in mine])
    there = [(s.low, s.high) for s, fact in zip(mine, facts, strict=True) if fact.is_file]
    return missing(after, [*there, (newest + 1, newest + 1)])


def refuse(lost: Sequence[Run], where: str) -> None:
    """Raises PositionError if records are missing.

    >>> refuse([], "LOG")
    >>> refuse([(1, 2), (6, 6)], "LOG")
    Traceback (most recent call last):
    tailrace.errors.PositionError: LOG has lost records that were not stored yet: 1 to 2, 6
      where: LOG
      hint: ...
    """
    if not lost:
        return
    numbers = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in lost[:5])
    raise PositionError(
        f"LOG has lost records that were not stored yet: {numbers}{', ...' if len(lost) > 5 else ''}",
        where=where,
        hint="files or versions of LOG were removed: restore them; or `tailrace resync` every table and "
        "run `tailrace capture TASK --once`: with newer baselines of all tables the store continues "
        "after the gap",
    )


def refuse_half(present: Iterable[Run], end: int, where: str) -> None:
    """Raises FormatError if there are records after the `end` of the last transaction: each commit of LOG
    ends with a whole transaction, and half of one would be stored twice.

    >>> refuse_half([(5, 9)], 9, "LOG")
    >>> refuse_half([(5, 9)], 7, "LOG")
    Traceback (most recent call last):
    tailrace.errors.FormatError: LOG ends inside a transaction: its records 8 to 9 have no end
      where: LOG
      hint: ...
    """
    most = max((last for _, last in present), default=end)
    if most > end:
        raise FormatError(
            f"LOG ends inside a transaction: its records {max(end, 0) + 1} to {most} have no end",
            where=where,
            hint="another program wrote it: restore it, or give the task a new home",
        )
