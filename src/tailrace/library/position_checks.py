"""Checks that a table's rows are known as of a position: not before its baseline, and not after the stored
changes."""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..errors import PositionError
from ..lake.log import LogState
from ..model import sequence
from ..model.positions import ChangeNumber, Position
from ..query.change_files import POSITION, SEQ, ChangeFiles
from ..query.positions import PositionRange
from ..state.baselines import Baseline
from ..state.ledger import Stored


def refuse_older(
    files: ChangeFiles, point: PositionRange, taken: Baseline, stored: Stored | None, captured: LogState
) -> None:
    """Raises PositionError if a position is not known to be after a baseline.

    A baseline may be ahead of LOG's end when it began, and of this host's clock when it was finished. Changes
    before its position are in its rows, whatever their numbers and times.

    Args:
        captured: the end of LOG.
    """
    if point.column == "stream_position" and point.high >= taken.position:
        return
    last = files.last(pc.field(POSITION) < taken.position)
    has = taken.after if last is None else max(taken.after, sequence.number_of(last[0]))
    if stored is not None and not _all_stored(stored, captured, taken.position):
        has = max(has, ChangeNumber(stored.upto + 1))  # its later changes are not known yet
    finished: str = sequence.make(sequence.time_part(taken.finished_at), 0)
    known = f"change number {has}, finished at {taken.finished_at:%Y-%m-%dT%H:%M:%SZ}"
    if last is not None and last[0] > finished:
        finished, known = last[0], f"with the changes up to change_seq {last[0]}"
    later = False
    if point.number is not None:
        later = point.number >= has
    elif point.column != "stream_position":
        first = files.first((pc.field(POSITION) >= taken.position) & after(taken.after))
        later = point.high >= finished or (first is not None and point.high >= first[0])
    if not later:
        raise PositionError(
            f"{point.text} is before the baseline of {taken.table} ({known})",
            where=files.path,
            hint="use a later position",
        )


def _all_stored(stored: Stored, captured: LogState, position: Position) -> bool:
    """Returns whether all changes before a stream position are stored."""
    if stored.position >= position:
        return True
    end = (captured.position or b"").hex().upper()
    return end >= position and captured.number <= stored.upto


def refuse_later(point: PositionRange, taken: Baseline, stored: Stored | None, task: str) -> None:
    """Raises PositionError for a position or change number that is not stored yet.

    Without any stored change, that is one after the baseline. A time may be later than all stored changes,
    because changes up to it may still arrive.
    """
    if point.column == "change_seq" and point.low != point.high:
        return
    if stored is None:
        number, at = taken.after, taken.finished_at
        seq, position = sequence.make(sequence.time_part(at), number), taken.position
    else:
        number, at, seq, position = stored.upto, stored.commit_time, stored.change_seq, stored.position
    reached = {"change_seq": seq, "stream_position": position}
    end = reached.get(point.column, f"{number:0{sequence.NUMBER_DIGITS}d}")
    if point.low > end:
        last = (
            "no change is stored; the baseline is up to {}, finished at"
            if stored is None
            else "changes are stored up to {}, committed at"
        )
        raise PositionError(
            f"{point.text} is not stored yet; {last.format(end)} {at:%Y-%m-%dT%H:%M:%SZ}",
            where=task,
            hint="use an earlier position, or try again later",
        )


def after(number: ChangeNumber) -> ds.Expression:
    """Returns a filter for changes after a change number."""
    mine = pc.utf8_slice_codeunits(pc.field(SEQ), sequence.TIME_DIGITS, sequence.WIDTH)
    return mine > f"{number:0{sequence.NUMBER_DIGITS}d}"
