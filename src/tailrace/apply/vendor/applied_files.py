"""The changes that a target has passed, file by file: which of those that lie there now it has never seen.

Files come, grow, are moved away, are delivered again, or are written anew with others' changes (compaction);
only changes that no file had before are late. A file's changes are known by their number and a checksum in
which their order does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FilePart:
    """Some changes of a table.

    Attributes:
        changes: how many there are.
        checksum: the sum of the hashes of their sequences and operations.
        last: the greatest of their sequences.
    """

    changes: int = 0
    checksum: int = 0
    last: str = ""

    def __add__(self, other: FilePart) -> FilePart:
        return FilePart(
            self.changes + other.changes, self.checksum + other.checksum, max(self.last, other.last)
        )

    def left_of(self, other: FilePart) -> bool:
        """Whether it is another one, or what is left of it when its first changes were taken out.

        >>> all_three = FilePart(3, 60, "c")
        >>> [FilePart(*p).left_of(all_three) for p in ((), (1, 30, "c"), (1, 20, "b"), (3, 61, "c"))]
        [True, True, False, False]
        """
        fewer = self.changes < other.changes and self.last == other.last
        return not self.changes or self == other or fewer


Files = Mapping[str, FilePart]


def together(parts: Iterable[FilePart]) -> FilePart:
    """All of them as one."""
    return sum(parts, FilePart())


def late(now: Files, known: Files, gone_before: Iterable[str] = ()) -> int:
    """How many changes no file had before, at the most; 0: none.

    Args:
        now: the files that there are, with their changes up to one place.
        known: those that there were, up to the same place.
        gone_before: which of `known` were not there any more when they were last looked at.

    >>> a, b, ab, other = FilePart(1, 5, "1"), FilePart(2, 9, "3"), FilePart(3, 14, "3"), FilePart(1, 7, "2")
    >>> late({"b": b}, {"a": a, "b": b}), late({"b": b, "c": other}, {"a": a, "b": b})  # a was moved away
    (0, 1)
    >>> late({"ab": ab}, {"a": a, "b": b}), late({"b": ab}, {"a": a, "b": b})  # both were written as one
    (0, 0)
    >>> late({"b": ab}, {"b": b})  # one that grew
    1
    """
    changed = {f: part for f, part in now.items() if known.get(f) != part}
    before = together(known[f] for f in changed if f in known)
    gone = {f: part for f, part in known.items() if f not in now}
    lately = {f: part for f, part in gone.items() if f not in set(gone_before)}
    if together(changed.values()) == before + together(lately.values()):
        return 0
    others = {f: part for f, part in changed.items() if f in known and not part.left_of(known[f])}
    grown = sum(n if (n := p.changes - known[f].changes) > 0 else p.changes for f, p in others.items())
    fresh = [part for f, part in changed.items() if f not in known]
    new, moved = _unmatched(fresh, gone.values()), _unmatched(lately.values(), fresh)
    if any(new.left_of(pool) for pool in (moved, together(gone.values()))):
        return grown
    return grown + new.changes


def _unmatched(parts: Iterable[FilePart], others: Iterable[FilePart]) -> FilePart:
    """Those that are none of the others, as one."""
    return together((Counter(parts) - Counter(others)).elements())
