"""Values that say where a change is in the history of a source.

They are texts and integers at run time. As types they keep apart what must not be mixed up: a signature that
says `ChangeNumber` takes no position, and no count of rows. A value that may be missing is None: nothing has
been captured, stored or applied yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

ChangeNumber = NewType("ChangeNumber", int)
"""The counter in a change sequence: 1, 2, 3, ... over all log records of a task."""
BEFORE_ALL = ChangeNumber(0)
"""The state of the counter before the first change."""
ChangeSeq = NewType("ChangeSeq", str)
"""A change sequence: 35 digits, commit time and change number (`model.sequence`)."""
Position = NewType("Position", str)
"""A position in the source's log: 40 hex digits that compare in commit order."""


def order_key(number: int | None) -> int:
    """Returns a key that orders change numbers, with None (nothing yet) before all of them.

    >>> max([None, ChangeNumber(7)], key=order_key), order_key(None) < order_key(ChangeNumber(0))
    (7, True)
    """
    return -1 if number is None else number


@dataclass(frozen=True)
class ChangeRange:
    """The change numbers later than `start` (None: from the first one on), up to and including `end`.

    >>> first = ChangeRange(None, 5)
    >>> first.lower, first.is_empty, ChangeRange(5, 5).is_empty
    (-1, False, True)
    >>> first.up_to(3), first.later_than(3), first.later_than(7)
    (ChangeRange(start=None, end=3), ChangeRange(start=3, end=5), ChangeRange(start=7, end=7))
    """

    start: int | None
    end: int

    @property
    def lower(self) -> int:
        """`start` as a number to compare with; -1 is less than every change number."""
        return order_key(self.start)

    @property
    def is_empty(self) -> bool:
        """Whether no number is in the range."""
        return self.lower >= self.end

    def up_to(self, end: int) -> ChangeRange:
        """The part of the range up to a number."""
        return ChangeRange(self.start, min(end, self.end))

    def later_than(self, number: int) -> ChangeRange:
        """The part of the range later than a number."""
        start = number if number > self.lower else self.start
        return ChangeRange(start, max(self.end, self.lower if start is None else start))
