"""Refuses ranges that include a capture gap: changes in a gap were never captured, so a result would be
wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..errors import GapError
from ..model import sequence
from ..model.change import PREFIX
from ..model.positions import ChangeSeq, Position
from ..state.capture_gaps import NUMBER, POSITION, SEQ, CaptureGap
from .positions import PositionRange

Change = tuple[ChangeSeq, Position] | None
"""`change_seq` and stream position of a change; None if there is no such change."""


class ChangesWithGaps(Protocol):
    """The kept changes of a table, among which there may be gaps."""

    @property
    def path(self) -> str:
        """The change table's path."""

    @property
    def gaps(self) -> Sequence[CaptureGap]:
        """The ranges in which changes were not captured."""

    def first(self, which: ds.Expression) -> Change:
        """Returns the first change for which a filter holds."""

    def last(self, which: ds.Expression) -> Change:
        """Returns the last change for which a filter holds."""


def refuse_gaps(files: ChangesWithGaps, start: PositionRange | None, end: PositionRange | None) -> None:
    """Raises an error if a range overlaps a gap.

    Raises:
        GapError: the range crosses a gap, or starts or ends in one.
    """
    for gap in files.gaps:
        if (start and _at_or_after(start, gap.onwards)) or (end and _at_or_before(end, gap.upto)):
            continue
        if not gap.ends:
            _refuse_after_removal(files, gap, end)
            continue
        first, last = files.first(_after(gap)), files.last(_before(gap))
        if (start and _at_or_after(start, _positions(first))) or (
            end and _at_or_before(end, _positions(last))
        ):
            continue
        if start is None and files.first(~_after(gap)) is None:
            continue  # the range begins with the oldest change that is kept
        if end is None and first is None and not gap.closed:
            continue  # no change was captured after the gap
        raise _error(files.path, gap, last, first)


def _refuse_after_removal(files: ChangesWithGaps, gap: CaptureGap, end: PositionRange | None) -> None:
    """Raises an error if a range ends after the last change of a table that is no longer captured.

    A range without an end includes all kept changes, and is allowed.
    """
    if end is None:
        return
    last = files.last(pc.field(PREFIX + SEQ) >= "")  # capture noticed the removal some time after it
    if not _at_or_before(end, _positions(last)):
        raise _error(files.path, gap, last, None)


def _before(gap: CaptureGap) -> ds.Expression:
    """Returns a filter for changes before a gap."""
    column, value = gap.split
    return pc.field(PREFIX + column) <= value


def _after(gap: CaptureGap) -> ds.Expression:
    """Returns a filter for changes after a gap."""
    if number := gap.onwards.get(NUMBER):
        return PositionRange.of(int(number)).since()
    if position := gap.onwards.get(POSITION):
        return pc.field(PREFIX + POSITION) >= position
    return ~_before(gap)


def _positions(change: Change) -> Mapping[str, str]:
    if change is None:
        return {}
    return {SEQ: change[0], POSITION: change[1], NUMBER: change[0][sequence.TIME_DIGITS :]}


def _at_or_after(point: PositionRange, known: Mapping[str, str]) -> bool:
    if point.number is not None and NUMBER in known and point.number >= int(known[NUMBER]):
        return True
    return point.column in known and point.low >= known[point.column]


def _at_or_before(point: PositionRange, known: Mapping[str, str]) -> bool:
    if point.number is not None and NUMBER in known and point.number <= int(known[NUMBER]):
        return True
    return point.column in known and point.high <= known[point.column]


def _error(path: str, gap: CaptureGap, last: Change, first: Change) -> GapError:
    low = None if last is None else f"change number {sequence.number_of(last[0])}"
    high = _text(gap.onwards or _positions(first)) if gap.closed else None
    between = f"between {low} and {high}" if low and high else f"before {high}" if high else f"after {low}"
    between = between if low or high else "before its new baseline" if gap.ends else "since its removal"
    asks = [f"up to {low}"] if low else []
    later = (
        "later ones once its new baseline is complete (`tailrace status`)"
        if gap.ends
        else "without `end`, or of other tables (`tailrace add` captures the table again)"
    )
    asks.append(f"from {high} on" if high else later)
    return GapError(
        f"changes of {gap.table} {between} were never captured: {gap.why}; the range includes them",
        where=path,
        hint=f"request changes {', or '.join(asks)}",
    )


def _text(places: Mapping[str, str]) -> str:
    if NUMBER in places:
        return f"change number {int(places[NUMBER])}"
    return f"stream position {places[POSITION]}"
