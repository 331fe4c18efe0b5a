"""How far a history follows a change table, and from where it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.compute as pc
from deltalake import DeltaTable

from ..engine.change_arrays import ChangeArrays
from ..errors import UnsupportedError
from ..lake import delta as lake
from ..model import sequence
from ..model.change import BEFORE, PREFIX
from ..model.positions import ChangeNumber, ChangeSeq
from .change_files import SEQ, ChangeRows
from .history_events import HistoryEvents, flow_app
from .history_table import EVENTS, HistoryTable
from .points import Place, Point

_NUMBER, _TIME, _MANY = flow_app("changes"), flow_app("changes/time"), flow_app("changes/rows")
_OPER = f"{PREFIX}change_oper"
ANOTHER = "keep another one, in another folder, with `start=` behind it, and the rows of before as `base=`"
"""What to do when a history cannot go on."""


@dataclass(frozen=True)
class Onward:
    """From where a history goes on.

    Attributes:
        since: the first place whose changes are new to it; None: any may be.
        seq: the last change sequence that it has; None: not known.
        rows: how many there are up to that in the change table; None: they were not counted.
        fewer: whether changes that it has are in the change table no longer.
    """

    since: Place | None
    seq: ChangeSeq | None
    rows: int | None = None
    fewer: bool = False


@dataclass(frozen=True)
class Followed:
    """The last change that a history has.

    Attributes:
        number: its number.
        seq: its whole change sequence; None if it has no change yet.
        many: the rows up to it, if some may come late.
    """

    number: ChangeNumber
    seq: ChangeSeq | None = None
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
        return Followed(ChangeNumber(number), seq, None if many < 0 else many)

    @staticmethod
    def upto(
        files: ChangeRows, found: ChangeArrays, since: Place | None, last: Followed | None, on: Onward | None
    ) -> Followed:
        """With the changes that were found from a place on (None: all)."""
        newest = ChangeSeq(max(found.seq[-1].as_py() if len(found) else "", (on and on.seq) or ""))
        if not newest:
            return last or Followed(files.reached)
        number = sequence.number_of(newest)
        if files.rising:
            return Followed(number, newest)
        before = _behind(since, on)
        if before is None or found.aside.num_rows:  # bad ones among those do not count
            return Followed(number, newest, files.many(Point.of(newest)))
        return Followed(number, newest, before + len(found))

    def next(self, files: ChangeRows, path: str) -> Onward:
        """From where on changes are new to the history at a path. Numbers may begin anew, and rows may come
        late: then the whole sequence tells what is new, and another number of rows that some may be.

        Raises:
            UnsupportedError: it is to read all changes again, and has forgotten some of its events.
        """
        if files.rising:
            return Onward(self.number + 1, self.seq)
        rows = None if self.seq is None else files.many(Point.of(self.seq))
        if self.seq is not None and rows == self.many:
            return Onward(_after(self.seq), self.seq, rows)
        return self._again(files, HistoryTable.open(path), rows)

    def _again(self, files: ChangeRows, history: HistoryTable, rows: int | None) -> Onward:
        """All changes again, when there are more or fewer rows than noted; where events are forgotten, those
        after the last one, if none came late."""
        events, more = history.events(), 0 if rows is None or self.many is None else rows - self.many
        horizon = events.horizon.as_py()
        if horizon is None:
            return Onward(None, self.seq, rows, more < 0)
        newest = self.seq or events.newest.as_py()
        if newest in (None, sequence.FIRST):
            return Onward(self.number + 1, None)
        if more > 0 or _untold(files, events, horizon, newest):
            raise UnsupportedError(
                "changes came late, before others that the history has, and it has forgotten events "
                "(`forget`)",
                where=history.path,
                hint=ANOTHER,
            )
        return Onward(_after(newest), newest, rows)

    @property
    def progress(self) -> Mapping[str, int]:
        """As the events note it."""
        noted: dict[str, int] = {_NUMBER: self.number}
        if self.seq is not None:
            noted[_TIME] = int(self.seq[: sequence.TIME_DIGITS])
        if self.many is not None:
            noted[_MANY] = self.many
        return noted


def _behind(since: Place | None, on: Onward | None) -> int | None:
    """How many rows there are that were not read; None: they were not counted. A history that begins at
    `start`, and is to read all changes again, reads those from there on."""
    if on is not None and on.since is not None:
        return on.rows
    return 0 if since is None else None


def _after(seq: str) -> str:
    return f"{int(seq) + 1:0{sequence.WIDTH}d}"


def _untold(files: ChangeRows, events: HistoryEvents, first: str, last: str) -> bool:
    """Whether there is a change between two sequences, both included, of which no event tells."""
    rows = files.rows(Point.of(first), Point.of(last), [SEQ, _OPER])
    rows = rows.filter(pc.not_equal(rows[_OPER], BEFORE))
    return not pc.all(pc.is_in(rows[SEQ], value_set=events.sequences(first)), min_count=0).as_py()
