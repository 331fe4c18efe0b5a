"""Whether the end of a range is before its start: told by the two places, or by the changes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from .points import Point

if TYPE_CHECKING:
    from .change_files import ChangeRows


def refuse_reversed(files: ChangeRows, start: Point | None, end: Point | None) -> None:
    """Raises an error if it is known that `end` is before `start`. It is called for ranges in which no change
    was found: the changes are asked again where the places are of two kinds.

    Raises:
        ConfigError: `end` is before `start`.
    """
    if start is not None and end is not None and _reversed(files, start, end):
        raise reversed_places(start, end)


def reversed_places(start: Point, end: Point) -> ConfigError:
    """The error for places of which the second is before the first."""
    return ConfigError(f"{end.text} is before {start.text}", hint="the older place goes first")


def _reversed(files: ChangeRows, start: Point, end: Point) -> bool:
    if start.column == end.column:
        return end.high < start.low
    if start.number is not None and end.number is not None:
        return end.number < start.number
    # Times, numbers and positions give changes the same order. If no change is from `start` to `end`, one
    # from `end` to `start` tells that they are reversed; without one, nothing tells which of them is older.
    return not files.has(start, end) and files.has(end.last, start.first)
