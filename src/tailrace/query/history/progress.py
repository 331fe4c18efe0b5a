"""Progress of a history that follows a change table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from ...engine.change_arrays import ChangeArrays
from ...errors import UnsupportedError
from ...lake import delta as lake
from ...lake.opened import open_table
from ...model import sequence
from ...model.change import BEFORE, PREFIX
from ...model.positions import ChangeNumber, ChangeSeq
from ..change_files import SEQ, ChangeRows
from ..positions import PositionLike, PositionRange
from .events import HistoryEvents, flow_app_id
from .table import EVENTS, HistoryTable

_NUMBER, _TIME, _MANY = flow_app_id("changes"), flow_app_id("changes/time"), flow_app_id("changes/rows")
_OPER = f"{PREFIX}change_oper"
NEW_HISTORY_HINT = (
    "keep another history in another folder, with a later `start=` and the earlier rows as `base=`"
)
"""Hint for a history that cannot be continued."""


@dataclass(frozen=True)
class ReadStart:
    """The position from which a history reads changes.

    Attributes:
        since: the first position with changes that are new to it; None if any change may be.
        seq: the last change sequence that it has; None if unknown.
        rows: the number of rows up to `seq` in the change table; None if they were not counted.
        fewer: whether changes that it has were removed from the change table.
    """

    since: PositionLike | None
    seq: ChangeSeq | None
    rows: int | None = None
    fewer: bool = False


@dataclass(frozen=True)
class FollowProgress:
    """The last change that a history has.

    Attributes:
        number: its change number.
        seq: its change sequence; None if it has no change yet.
        many: the number of rows up to it, if some may arrive late.
    """

    number: ChangeNumber
    seq: ChangeSeq | None = None
    many: int | None = None

    @staticmethod
    def of(path: str) -> FollowProgress | None:
        """Reads the progress of the history at a path; None for a new history."""
        if not lake.exists(path):
            return None
        events = open_table(f"{path.rstrip('/')}/{EVENTS}")
        number, time, many = (lake.reached(events, app) for app in (_NUMBER, _TIME, _MANY))
        if number is None:
            return None
        return FollowProgress(number, None if time is None else sequence.make(time, number), many)

    @staticmethod
    def upto(
        files: ChangeRows,
        found: ChangeArrays,
        since: PositionLike | None,
        last: FollowProgress | None,
        on: ReadStart | None,
    ) -> FollowProgress:
        """Returns the progress after the changes that were found from a position on (None: all)."""
        newest = ChangeSeq(max(found.seq[-1].as_py() if len(found) else "", (on and on.seq) or ""))
        if not newest:
            return last or FollowProgress(files.max_number)
        number = sequence.number_of(newest)
        if files.monotonic:
            return FollowProgress(number, newest)
        before = _rows_before(since, on)
        if before is None or found.aside.num_rows:  # rejects must be counted as well
            return FollowProgress(number, newest, files.count_until(PositionRange.of(newest)))
        return FollowProgress(number, newest, before + len(found))

    def next(self, files: ChangeRows, path: str) -> ReadStart:
        """Returns the position from which changes are new to the history at a path.

        If numbers may restart and rows may arrive late, whole sequences are compared. Another number of rows
        means that earlier rows may be new.

        Raises:
            UnsupportedError: all changes must be read again, and events of the history were removed.
        """
        if files.monotonic:
            return ReadStart(self.number + 1, self.seq)
        rows = None if self.seq is None else files.count_until(PositionRange.of(self.seq))
        if self.seq is not None and rows == self.many:
            return ReadStart(_after(self.seq), self.seq, rows)
        return self._again(files, HistoryTable.open(path), rows)

    def _again(self, files: ChangeRows, history: HistoryTable, rows: int | None) -> ReadStart:
        """Returns the position for reading all changes again, when there are more or fewer rows than before.

        If events were removed (`forget`), reading continues after the last event, if none arrived late.
        """
        events, more = history.events(), 0 if rows is None or self.many is None else rows - self.many
        horizon = events.horizon.as_py()
        if horizon is None:
            return ReadStart(None, self.seq, rows, more < 0)
        newest = self.seq or events.newest.as_py()
        if newest in (None, sequence.FIRST):
            return ReadStart(self.number + 1, None)
        if more > 0 or _has_unknown_changes(files, events, horizon, newest):
            raise UnsupportedError(
                "changes arrived after later ones that the history has, and its older events were removed "
                "(`forget`)",
                where=history.path,
                hint=NEW_HISTORY_HINT,
            )
        return ReadStart(_after(newest), newest, rows)

    @property
    def progress(self) -> Mapping[str, int]:
        """The progress as stored with the events."""
        noted: dict[str, int] = {_NUMBER: self.number}
        if self.seq is not None:
            noted[_TIME] = int(self.seq[: sequence.TIME_DIGITS])
        if self.many is not None:
            noted[_MANY] = self.many
        return noted


def _rows_before(since: PositionLike | None, on: ReadStart | None) -> int | None:
    """Returns the number of rows before those that were read; None if they were not counted.

    A history that begins at `start` and reads all changes again reads those from `start` on.
    """
    if on is not None and on.since is not None:
        return on.rows
    return 0 if since is None else None


def _after(seq: ChangeSeq) -> ChangeSeq:
    return ChangeSeq(f"{int(seq) + 1:0{sequence.WIDTH}d}")


def _has_unknown_changes(files: ChangeRows, events: HistoryEvents, first: ChangeSeq, last: ChangeSeq) -> bool:
    """Returns whether there is a change between two sequences, both included, without an event."""
    rows = files.rows(PositionRange.of(first), PositionRange.of(last), [SEQ, _OPER])
    rows = rows.filter(pc.not_equal(rows[_OPER], BEFORE))
    return not pc.all(pc.is_in(rows[SEQ], value_set=events.sequences(first)), min_count=0).as_py()
