"""Values that say where a change is in the history of a source.

They are texts and integers at run time. As types they keep apart what must not be mixed up: a signature that
says `ChangeNumber` takes no position, and no count of rows. A value that may be missing is None: nothing has
been captured, stored or applied yet.
"""

from __future__ import annotations

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
