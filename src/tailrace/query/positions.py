"""Positions in a table's history, as users write them."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace
from typing import overload

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..config.quantities import seconds
from ..errors import ConfigError
from ..model import sequence
from ..model.change import PREFIX
from ..model.positions import ChangeNumber

PositionLike = str | int | dt.datetime
"""A `change_seq` (35 digits), a stream position (40 hex digits, or PostgreSQL's `0/291F3590`), a change
number, or a time.

A time is ISO 8601 (UTC by default), `now`, or a duration before now (`10m`). A time includes all changes
committed at it, by the time in `change_seq` (hundredths of a second).
"""
POSITION_DIGITS = 40
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_DURATION = re.compile(r"\d[\d.\s]*(?:ms|[smhd])[\d.\smhd]*")
_NUMBER = sequence.NUMBER_DIGITS


@dataclass(frozen=True)
class PositionRange:
    """A parsed position: the interval from `low` to `high` of a header column; `text` is the input."""

    column: str
    low: str
    high: str
    text: str

    @staticmethod
    def of(place: PositionLike) -> PositionRange:
        """Parses a position.

        >>> PositionRange.of("2026-11-22T10:00:00Z").low
        '20261122100000000000000000000000000'
        >>> PositionRange.of(7).column, PositionRange.of("0/291F3590").low[:16]
        ('number', '00000000291F3590')

        Raises:
            ConfigError: it is none.
        """
        text = str(place).strip()
        digits = text.isascii() and text.isdecimal()
        if isinstance(place, dt.datetime):
            return _time(place, text)
        if len(text) == sequence.WIDTH and digits:
            return PositionRange("change_seq", text, text, text)
        if len(text) == POSITION_DIGITS and set(text.upper()) <= set("0123456789ABCDEF"):
            return PositionRange("stream_position", text.upper(), text.upper(), text)
        if digits and len(text) < _NUMBER:
            return PositionRange("number", text.zfill(_NUMBER), text.zfill(_NUMBER), text)
        if lsn := _LSN.fullmatch(text):
            start = "".join(part.upper().zfill(8) for part in lsn.groups())
            low, high = (start.ljust(POSITION_DIGITS, digit) for digit in "0F")
            return PositionRange("stream_position", low, high, text)
        try:
            at = _before_now(text)
            return _time(*(at or (dt.datetime.fromisoformat(text.replace("Z", "+00:00")), text)))
        except ValueError:
            raise ConfigError(
                f"{text!r} is not a position",
                hint="write a time (2026-11-22T10:00:00Z), a change_seq (35 digits), a stream position (40 "
                "hex digits, or 0/291F3590), a change number, a duration before now (10m), or now",
            ) from None

    def since(self, prefix: str = PREFIX) -> ds.Expression:
        """Returns a filter for changes at this position or later."""
        return self._value(prefix) >= self.low

    def upto(self, prefix: str = PREFIX) -> ds.Expression:
        """Returns a filter for changes at this position or earlier."""
        return self._value(prefix) <= self.high

    def _value(self, prefix: str) -> ds.Expression:
        if self.column == "number":
            seq = pc.field(f"{prefix}change_seq")
            return pc.utf8_slice_codeunits(seq, sequence.TIME_DIGITS, sequence.WIDTH)
        return pc.field(prefix + self.column)

    @property
    def first(self) -> PositionRange:
        """The start of the interval."""
        return replace(self, high=self.low)

    @property
    def last(self) -> PositionRange:
        """The end of the interval."""
        return replace(self, low=self.high)

    @property
    def number(self) -> ChangeNumber | None:
        """The change number, or None if the position does not contain one."""
        if self.column == "number":
            return ChangeNumber(int(self.low))
        return sequence.number_of(self.low) if self.low == self.high and self.column == "change_seq" else None


@overload
def resolve_relative(place: PositionLike) -> PositionLike: ...
@overload
def resolve_relative(place: PositionLike | None) -> PositionLike | None: ...
def resolve_relative(place: PositionLike | None) -> PositionLike | None:
    """Returns the position with `now` and durations replaced by the current time."""
    return PositionRange.of(place).text if isinstance(place, str) else place


def format_lsn(position: str) -> str:
    """Returns a stream position in PostgreSQL's notation.

    >>> format_lsn("00000000291F3590" + "0" * 24)
    '0/291F3590'
    """
    return f"{int(position[:8], 16):X}/{int(position[8:16], 16):X}" if position else ""


def _before_now(text: str) -> tuple[dt.datetime, str] | None:
    """Returns the time of `now` or of a duration before now, and its text; None for other texts."""
    if text != "now" and not _DURATION.fullmatch(text):
        return None
    ago = 0.0 if text == "now" else seconds(text)
    at = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=ago)
    return at, at.isoformat()


def _time(at: dt.datetime, text: str) -> PositionRange:
    part = sequence.time_part(at if at.tzinfo else at.replace(tzinfo=dt.timezone.utc))
    return PositionRange("change_seq", sequence.make(part, 0), f"{part:016d}" + "9" * _NUMBER, text)
