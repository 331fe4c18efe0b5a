"""Finds the ends of records and values in delimited text, inside and outside quotes.

A value that begins with a quote must end with one, followed by a delimiter or the record's end. Otherwise the
record is bad, and the next one begins after its line. In other values, quotes are text. All quotes of a block
are checked together, and one by one only if some are improper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST = 64 << 20
"""The maximum bytes of one quoted value."""
NEVER_ENDS = "a quote that is never closed"
BEHIND = "text after a closing quote"
_CR = 13
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Form:
    """The significant bytes of a dialect.

    Attributes:
        escape: precedes a quote inside quotes; the quote itself if quotes are doubled.
        drop: a carriage return before an end belongs to it.
    """

    delimiter: int
    quote: int | None
    escape: int | None
    end: int
    drop: bool = False


@dataclass(frozen=True)
class Structure:
    """Offsets of delimiters and of record ends outside quotes, and offsets of invalid quotes with
    a reason."""

    delimiters: Places
    ends: Places
    bad: Sequence[tuple[int, str]] = ()


def structure(data: bytes, form: Form, *, last: bool = True) -> Structure:
    """Returns the structure of a block that begins with a record; `last` if nothing follows it.

    >>> found = structure(b'1,"a,b"\\n2,"x\\n3,c\\n', Form(44, 34, 34, 10))
    >>> found.delimiters.tolist(), found.ends.tolist(), found.bad
    ([1, 9, 14], [7, 12, 16], [(10, 'a quote that is never closed')])
    """
    octets = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero((octets == form.delimiter) | (octets == form.end))
    bad: Sequence[tuple[int, str]] = ()
    if form.quote is not None:
        quotes = np.flatnonzero(octets == form.quote)
        if form.escape is not None and form.escape != form.quote:
            quotes = quotes[~_escaped(octets, quotes, form.escape)]
        too_long = len(quotes) % 2 and (last or len(data) - quotes[-1] > MOST)
        if too_long or not _proper(octets, quotes, form):
            quotes, bad = _one_by_one(data, quotes, form, last=last)
        marks = marks[np.searchsorted(quotes, marks) % 2 == 0]
    is_end = octets[marks] == form.end
    return Structure(marks[~is_end], marks[is_end], bad)


def _escaped(octets: npt.NDArray[np.uint8], quotes: Places, escape: int) -> npt.NDArray[np.bool_]:
    """Returns which quotes have an odd number of escapes directly before them."""
    others = np.flatnonzero(octets != escape)
    before = np.searchsorted(others, quotes) - 1
    start = (
        np.where(before >= 0, others[np.maximum(before, 0)], -1) if len(others) else np.full(len(quotes), -1)
    )
    return np.asarray((quotes - start - 1) % 2 == 1)


def _proper(octets: npt.NDArray[np.uint8], quotes: Places, form: Form) -> bool:
    """Returns whether every other quote begins a value and those in between end it, except doubled ones."""
    opens, closes = quotes[0::2], quotes[1::2]
    doubled = np.zeros(len(opens), bool)
    if form.escape == form.quote:
        doubled[1:] = opens[1:] == closes[: len(opens) - 1] + 1
    before = octets[opens - 1]
    begins = (opens == 0) | (before == form.delimiter) | (before == form.end) | doubled
    if not begins.all():
        return False
    behind = closes + 1
    padded = np.append(octets, [form.end, form.end]).astype(np.uint8)
    next_ = padded[behind]
    ended = (next_ == form.delimiter) | (next_ == form.end)
    if form.drop:
        ended |= (next_ == _CR) & (padded[behind + 1] == form.end)
    ended[: len(doubled) - 1] |= doubled[1:]
    return bool(ended.all())


def _one_by_one(
    data: bytes, quotes: Places, form: Form, *, last: bool
) -> tuple[Places, list[tuple[int, str]]]:
    """Returns the quotes that open and close values, and those that are invalid.

    A value that is open at the end of the block keeps its opening quote, because more data may follow.
    """
    places = quotes.tolist()
    begins = (form.delimiter, form.end)
    kept: list[int] = []
    bad: list[tuple[int, str]] = []
    i = 0
    while i < len(places):
        at = places[i]
        if at and data[at - 1] not in begins:
            i += 1  # text in an unquoted value
            continue
        close = i + 1
        if form.escape == form.quote:
            while close + 1 < len(places) and places[close + 1] == places[close] + 1:
                close += 2
        if close < len(places) and _ends_value(data, places[close] + 1, form):
            kept += places[i : close + 1]
            i = close + 1
            continue
        line = data.find(form.end, at)
        may_come = not last and len(data) - at <= MOST and close >= len(places)
        if may_come or (line < 0 and not last):
            kept.append(at)
            break
        same_line = close < len(places) and (line < 0 or places[close] < line)
        bad.append((at, BEHIND if same_line else NEVER_ENDS))
        i = len(places) if line < 0 else bisect_right(places, line)
    return np.array(kept, np.int64), bad


def _ends_value(data: bytes, at: int, form: Form) -> bool:
    """Returns whether a value may end here."""
    if at >= len(data) or data[at] in (form.delimiter, form.end):
        return True
    return form.drop and data[at] == _CR and data[at + 1 : at + 2] in (b"", bytes([form.end]))
