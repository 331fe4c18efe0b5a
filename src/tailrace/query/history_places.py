"""Places in a kept history: values of its own sequence, or, where it follows a change table, places as all
questions take them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..engine.event_rows import SEQUENCE
from ..engine.history import END_AT, START_AT
from ..errors import ConfigError, PositionError, UnsupportedError
from ..model import sequence
from ..wire.given_values import given_value
from .history_events import HistoryEvents
from .points import Point

FOLLOWS = "tailrace.follows"
"""The property of a history's table which says that it follows a change table, in order of `change_seq`."""


@dataclass(frozen=True)
class HistoryPlaces:
    """How places of a history are read.

    Attributes:
        path: of the history.
        kind: the type of its sequence.
        follows: whether it follows a change table.
    """

    path: str
    kind: pa.DataType
    follows: bool

    def valid(self, place: object) -> ds.Expression:
        """The versions that were in force at a place (included).

        Raises:
            ConfigError: it is no place of the history.
        """
        if not self.follows:
            at = self._own(place)
            return (ds.field(START_AT) <= at) & (ds.field(END_AT).is_null() | (ds.field(END_AT) > at))
        point = self._point(place)
        began = _compared(point, START_AT) <= point.high
        return began & (ds.field(END_AT).is_null() | (_compared(point, END_AT) > point.high))

    def cut(self, place: object, events: HistoryEvents) -> pa.Scalar:
        """The sequence before which the events before a place are.

        Raises:
            ConfigError: it is no place of the history.
            PositionError: the history that follows a change table has not reached it.
        """
        if not self.follows:
            return self._own(place)
        point = self._point(place)
        found = events.first(_compared(point, SEQUENCE) >= point.low)
        if not found.is_valid:
            raise PositionError(
                f"the history has no event at {point.text}, or later: changes to come would not count",
                where=self.path,
                hint="bring it up to date first (`keep_history`), or forget what is before an older place",
            )
        return found if point.column == "number" else pa.scalar(point.low, self.kind)

    def _own(self, place: object) -> pa.Scalar:
        value, why = given_value(place, self.kind)
        if why is None and value.as_py() != value.as_py():
            why = "NaN has no place in the order"
        if why is not None:
            raise ConfigError(
                f"{place!r} is no value of the history's sequence ({self.kind})", where=self.path, hint=why
            )
        return value

    def _point(self, place: object) -> Point:
        if place is None or isinstance(place, bool | float):
            raise ConfigError(f"{place!r} is not a place in the history", where=self.path, hint=_GIVE)
        point = Point.of(place)  # type: ignore[arg-type] # it says itself what is none
        if point.column == "stream_position":
            raise UnsupportedError(
                f"{point.text} is a stream position, which the history does not keep",
                where=self.path,
                hint=_GIVE,
            )
        return point


def _compared(point: Point, column: str) -> ds.Expression:
    """What of a column of change sequences is compared with a place."""
    if point.column == "number":
        return pc.utf8_slice_codeunits(pc.field(column), sequence.TIME_DIGITS, sequence.WIDTH)
    return pc.field(column)


_GIVE = "give a time (2026-11-22T10:00:00Z), a change_seq (35 digits) or a change number"
