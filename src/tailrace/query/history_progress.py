"""How far a history follows a change table, and from where it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

from ..lake import delta as lake
from ..model import sequence
from .change_files import ChangeRows
from .history_events import flow_app
from .history_table import EVENTS
from .points import Place, Point

_NUMBER, _TIME, _MANY = flow_app("changes"), flow_app("changes/time"), flow_app("changes/rows")


@dataclass(frozen=True)
class Followed:
    """The last change that a history has.

    Attributes:
        number: its number.
        seq: its whole change sequence; None: not known (no change yet, or an older version noted the number
            alone).
        many: the rows up to it, if some may come late.
    """

    number: int
    seq: str | None = None
    many: int | None = None

    @staticmethod
    def of(path: str) -> Followed | None:
        """What the history at a path has; None: nothing was asked yet, or there is none."""
        if not lake.exists(path):
            return None
        events = DeltaTable(f"{path.rstrip('/')}/{EVENTS}")
        number, time, many = (lake.reached(events, app) for app in (_NUMBER, _TIME, _MANY))
        if number < 0:
            return None
        seq = None if time < 0 else sequence.make(time, number)
        return Followed(number, seq, None if many < 0 else many)

    @staticmethod
    def upto(files: ChangeRows, seq: str | None, last: Followed | None) -> Followed:
        """With the changes up to a sequence (None: no more came)."""
        newest = max(seq or "", (last and last.seq) or "")
        if not newest:
            return last or Followed(files.reached)
        return Followed(sequence.number_of(newest), newest, files.many(Point.of(newest)))

    def next(self, files: ChangeRows) -> Place | None:
        """From where on changes are new to the history; None: any may be. Numbers may begin anew, and rows
        may come late: then the whole sequence tells what is new, and the number of rows whether some are."""
        if self.seq is None:
            return None if files.many(Point.of(self.number)) is not None else self.number + 1
        many = files.many(Point.of(self.seq))
        if many is None:
            return self.number + 1
        if self.many is None or many > self.many:
            return None
        return f"{int(self.seq) + 1:0{sequence.WIDTH}d}"

    @property
    def progress(self) -> Mapping[str, int]:
        """As the events note it."""
        noted = {_NUMBER: self.number}
        if self.seq is not None:
            noted[_TIME] = int(self.seq[: sequence.TIME_DIGITS])
        if self.many is not None:
            noted[_MANY] = self.many
        return noted
