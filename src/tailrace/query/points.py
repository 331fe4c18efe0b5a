"""Places in a table's history, as people name them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..errors import ConfigError
from ..model import sequence
from ..model.change import PREFIX

Place = str | int | dt.datetime
"""A `change_seq` (35 digits), a stream position (40 hex digits), a change number, or a time (UTC unless it
says otherwise): all that was committed at it, by the time in `change_seq` (hundredths of a second)."""
POSITION_DIGITS = 40
_NUMBER = sequence.NUMBER_DIGITS


@dataclass(frozen=True)
class Point:
    """A place: values of a `column` between `low` and `high` are at it. `text`: as it was given."""

    column: str
    low: str
    high: str
    text: str

    @staticmethod
    def of(place: Place) -> Point:
        """Reads a place.

        >>> Point.of("2026-11-22T10:00:00Z").low
        '20261122100000000000000000000000000'
        >>> Point.of(7).column
        'number'

        Raises:
            ConfigError: it is none.
        """
        text = str(place).strip()
        digits = text.isascii() and text.isdecimal()
        if isinstance(place, dt.datetime):
            return _time(place, text)
        if len(text) == sequence.WIDTH and digits:
            return Point("change_seq", text, text, text)
        if len(text) == POSITION_DIGITS and set(text.upper()) <= set("0123456789ABCDEF"):
            return Point("stream_position", text.upper(), text.upper(), text)
        if digits and len(text) < _NUMBER:
            return Point("number", text.zfill(_NUMBER), text.zfill(_NUMBER), text)
        try:
            return _time(dt.datetime.fromisoformat(text.replace("Z", "+00:00")), text)
        except ValueError:
            raise ConfigError(
                f"{text!r} is not a place in the history",
                hint="write a time (2026-11-22T10:00:00Z), a change_seq (35 digits), a stream position (40 "
                "hex digits) or a change number",
            ) from None

    def since(self, prefix: str = PREFIX) -> ds.Expression:
        """Changes at it and later ones."""
        return self._value(prefix) >= self.low

    def upto(self, prefix: str = PREFIX) -> ds.Expression:
        """Changes at it and earlier ones."""
        return self._value(prefix) <= self.high

    def _value(self, prefix: str) -> ds.Expression:
        if self.column == "number":
            seq = pc.field(f"{prefix}change_seq")
            return pc.utf8_slice_codeunits(seq, sequence.TIME_DIGITS, sequence.WIDTH)
        return pc.field(prefix + self.column)

    @property
    def first(self) -> Point:
        """The beginning of what is at it."""
        return replace(self, high=self.low)

    @property
    def last(self) -> Point:
        """The end of what is at it."""
        return replace(self, low=self.high)

    @property
    def number(self) -> int | None:
        """Its change number; None where it does not tell one."""
        if self.column == "number":
            return int(self.low)
        return sequence.number_of(self.low) if self.low == self.high and self.column == "change_seq" else None


def _time(at: dt.datetime, text: str) -> Point:
    part = sequence.time_part(at if at.tzinfo else at.replace(tzinfo=dt.timezone.utc))
    return Point("change_seq", sequence.make(part, 0), f"{part:016d}" + "9" * _NUMBER, text)
