"""Positions in a kept history: values of its sequence or, if it follows a change table, positions as in other
queries."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ...engine.history import END_AT, START_AT
from ...engine.history_events import SEQUENCE
from ...errors import ConfigError, PositionError, UnsupportedError
from ...model import sequence
from ...wire.user_values import user_value
from ..positions import PositionRange
from .events import HistoryEvents

FOLLOWS = "tailrace.follows"
"""Property of a history's table that marks a history which follows a change table, ordered by
`change_seq`."""


@dataclass(frozen=True)
class HistoryPositions:
    """Parser for positions of a history.

    Attributes:
        path: the history's path.
        kind: the type of its sequence.
        follows: whether it follows a change table.
    """

    path: str
    kind: pa.DataType
    follows: bool

    def valid(self, place: object) -> ds.Expression:
        """Returns a filter for the versions that were valid at a position (included).

        Raises:
            ConfigError: it is not a position of the history.
        """
        if not self.follows:
            at = self._own(place)
            return (ds.field(START_AT) <= at) & (ds.field(END_AT).is_null() | (ds.field(END_AT) > at))
        point = self._point(place)
        began = _compared(point, START_AT) <= point.high
        return began & (ds.field(END_AT).is_null() | (_compared(point, END_AT) > point.high))

    def cut(self, place: object, events: HistoryEvents) -> pa.Scalar:
        """Returns the sequence before which all events before a position are.

        Raises:
            ConfigError: it is not a position of the history.
            PositionError: a history that follows a change table has not reached it.
        """
        if not self.follows:
            return self._own(place)
        point = self._point(place)
        found = events.first(_compared(point, SEQUENCE) >= point.low)
        if not found.is_valid:
            raise PositionError(
                f"the history has no event at {point.text} or later: later changes would be rejected",
                where=self.path,
                hint="update the history first (`keep_history`), or choose an older position",
            )
        return found if point.column == "number" else pa.scalar(point.low, self.kind)

    def _own(self, place: object) -> pa.Scalar:
        value, why = user_value(place, self.kind)
        if why is None and value.as_py() != value.as_py():
            why = "NaN has no order"
        if why is not None:
            raise ConfigError(
                f"{place!r} is not a value of the history's sequence ({self.kind})", where=self.path, hint=why
            )
        return value

    def _point(self, place: object) -> PositionRange:
        if place is None or isinstance(place, bool | float):
            raise ConfigError(f"{place!r} is not a position", where=self.path, hint=_GIVE)
        point = PositionRange.of(place)  # type: ignore[arg-type] # raises for other types
        if point.column == "stream_position":
            raise UnsupportedError(
                f"{point.text} is a stream position, which a history does not store",
                where=self.path,
                hint=_GIVE,
            )
        return point


def _compared(point: PositionRange, column: str) -> ds.Expression:
    """Returns the expression of a change sequence column that is compared with a position."""
    if point.column == "number":
        return pc.utf8_slice_codeunits(pc.field(column), sequence.TIME_DIGITS, sequence.WIDTH)
    return pc.field(column)


_GIVE = "pass a time (2026-11-22T10:00:00Z), a change_seq (35 digits) or a change number"
