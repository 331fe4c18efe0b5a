"""Checks that a range does not end before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from .points import Point

if TYPE_CHECKING:
    from .change_files import ChangeRows


def refuse_reversed(files: ChangeRows, start: Point | None, end: Point | None) -> None:
    """Raises an error if `end` is known to be before `start`.

    Call it for ranges without changes. Positions of different kinds are compared by reading changes.

    Raises:
        ConfigError: `end` is before `start`.
    """
    if start is not None and end is not None and _reversed(files, start, end):
        raise reversed_places(start, end)


def reversed_places(start: Point, end: Point) -> ConfigError:
    """Returns the error for a range that ends before it starts."""
    return ConfigError(f"{end.text} is before {start.text}", hint="pass the older position first")


def _reversed(files: ChangeRows, start: Point, end: Point) -> bool:
    if start.column == end.column:
        return end.high < start.low
    if start.number is not None and end.number is not None:
        return end.number < start.number
    # Times, numbers and positions order changes alike. If no change is between `start` and `end`, a change
    # between `end` and `start` proves that they are reversed. Without one, the order is unknown.
    return not files.has(start, end) and files.has(end.last, start.first)
