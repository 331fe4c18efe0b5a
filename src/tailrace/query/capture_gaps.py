"""Ranges across a gap, where changes of the source were never captured: no answer to them would be true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..errors import GapError
from ..model import sequence
from ..model.change import PREFIX
from ..state.capture_gaps import NUMBER, POSITION, SEQ, CaptureGap
from .points import Point

Change = tuple[str, str] | None
"""`change_seq` and stream position of a change; None: there is none."""


class Captured(Protocol):
    """A table's changes that are kept, among which there may be gaps."""

    @property
    def path(self) -> str:
        """Where they are."""

    @property
    def gaps(self) -> Sequence[CaptureGap]:
        """Where changes of the source are missing."""

    def first(self, which: ds.Expression) -> Change:
        """The first change for which an expression holds."""

    def last(self, which: ds.Expression) -> Change:
        """The last one."""


def refuse_gaps(files: Captured, start: Point | None, end: Point | None) -> None:
    """Raises an error if a range goes across a gap, or begins or ends within one.

    Raises:
        GapError: it does.
    """
    for gap in files.gaps:
        if (start and _at_or_after(start, gap.onwards)) or (end and _at_or_before(end, gap.upto)):
            continue
        if not gap.ends:
            _refuse_behind(files, gap, end)
            continue
        first, last = files.first(_after(gap)), files.last(_before(gap))
        if (start and _at_or_after(start, _places(first))) or (end and _at_or_before(end, _places(last))):
            continue
        if start is None and files.first(~_after(gap)) is None:
            continue  # it begins with the oldest change that is kept
        if end is None and first is None and not gap.closed:
            continue  # nothing was captured since
        raise _error(files.path, gap, last, first)


def _refuse_behind(files: Captured, gap: CaptureGap, end: Point | None) -> None:
    """Raises an error if a range ends behind the last change of a table that is captured no longer. One
    without an end is what there is of it."""
    if end is None:
        return
    last = files.last(pc.field(PREFIX + SEQ) >= "")  # capture heard of the removal at some time after it
    if not _at_or_before(end, _places(last)):
        raise _error(files.path, gap, last, None)


def _before(gap: CaptureGap) -> ds.Expression:
    """Changes that were captured before a gap."""
    column, value = gap.split
    return pc.field(PREFIX + column) <= value


def _after(gap: CaptureGap) -> ds.Expression:
    """Changes that were captured after it."""
    if number := gap.onwards.get(NUMBER):
        return Point.of(int(number)).since()
    if position := gap.onwards.get(POSITION):
        return pc.field(PREFIX + POSITION) >= position
    return ~_before(gap)


def _places(change: Change) -> Mapping[str, str]:
    if change is None:
        return {}
    return {SEQ: change[0], POSITION: change[1], NUMBER: change[0][sequence.TIME_DIGITS :]}


def _at_or_after(point: Point, known: Mapping[str, str]) -> bool:
    if point.number is not None and NUMBER in known and point.number >= int(known[NUMBER]):
        return True
    return point.column in known and point.low >= known[point.column]


def _at_or_before(point: Point, known: Mapping[str, str]) -> bool:
    if point.number is not None and NUMBER in known and point.number <= int(known[NUMBER]):
        return True
    return point.column in known and point.high <= known[point.column]


def _error(path: str, gap: CaptureGap, last: Change, first: Change) -> GapError:
    low = None if last is None else f"change number {sequence.number_of(last[0])}"
    high = _text(gap.onwards or _places(first)) if gap.closed else None
    between = f"between {low} and {high}" if low and high else f"before {high}" if high else f"after {low}"
    between = between if low or high else "before its new baseline" if gap.ends else "since its removal"
    asks = [f"up to {low}"] if low else []
    later = (
        "later ones once its new baseline is there (`tailrace status`)"
        if gap.ends
        else "without an end, or of other tables (`tailrace add` captures it again)"
    )
    asks.append(f"from {high} on" if high else later)
    return GapError(
        f"changes of {gap.table} {between} were never captured: {gap.why}; the range reaches into that",
        where=path,
        hint=f"ask for changes {', or '.join(asks)}",
    )


def _text(places: Mapping[str, str]) -> str:
    if NUMBER in places:
        return f"change number {int(places[NUMBER])}"
    return f"stream position {places[POSITION]}"
