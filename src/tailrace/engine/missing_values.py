"""Finds the origin of the values of each key's last image if images have missing columns.

**A column that an image does not have keeps its value in the changed row**, as in an UPDATE that does not
name it. A change of key applies to the row with the old key, and keeps its values. If that row does not exist
and the change is applied as an insert, missing values are taken from the before image (B), else they are
NULL. In an insert, missing columns are NULL.

The changes of a key are divided into *periods*, each the lifetime of one row. An insert, or an update that
moves a row to the key, starts a period. A delete, or an update that moves the row away, ends it. The first
period is the target's row with this key, if it exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.change import BEFORE, DELETE, INSERT
from .decide import Decided
from .events import Bools, Events, Ints


@dataclass(frozen=True)
class ValueOrigins:
    """The last image of each key that has one.

    Attributes:
        key: the numbers of the keys.
        rows: the last row of each key.
        deletes: whether it removes the key's row.
        source: per key and column the row of the batch with the value; -1 if it has none.
        origin: else the number of the key whose target row has the value, if that row exists; -1 if none.
    """

    key: Ints
    rows: Ints
    deletes: Bools
    source: Ints
    origin: Ints


def find_origins(events: Events, decided: Decided, there: Bools, *, marks: bool = False) -> ValueOrigins:
    """Finds the origin of each value of the last images.

    Args:
        events: the changes.
        decided: their outcomes.
        there: which columns each row's image has.
        marks: rows are not removed (soft delete): a deleting image is that of a row that stays.

    >>> ops = Events(np.array(["U", "U"]), np.array([0, 1]), np.array([0, 0]))
    >>> all_count = Decided(np.zeros(2, np.int64), np.ones(2, np.bool_), 2, None)
    >>> found = find_origins(ops, all_count, np.array([[True, True, False], [True, False, False]]))
    >>> found.source.tolist(), found.origin.tolist()
    ([[1, 0, -1]], [[-1, -1, 0]])
    """
    line = _KeyOrder.of(events, np.flatnonzero(decided.effective), there, marks=marks)
    last = np.flatnonzero(np.append(line.key[1:] != line.key[:-1], True)) if len(line.key) else line.key
    deletes = line.ends[last]
    source, origin = line.values(last)
    source[deletes], origin[deletes] = -1, -1
    return ValueOrigins(line.key[last], line.rows[last], deletes, source, origin)


@dataclass(frozen=True)
class _KeyOrder:
    """The effective events, ordered by key and time.

    Attributes:
        rows: their rows in the batch.
        key: the numbers of their keys.
        ends: whether the event ends a period.
        names: whether the event's image has values of its row; images of deleted rows do not.
        start: the first event of its period.
        moved_from: for an event that moves a row to its key, the event that moved it away; otherwise -1.
        target: whether the period is the target's row.
        before: the row of the before image of the first event in the period.
        there: which columns each row's image has.
    """

    rows: Ints
    key: Ints
    ends: Bools
    names: Bools
    start: Ints
    moved_from: Ints
    target: Bools
    before: Ints
    there: Bools

    @staticmethod
    def of(events: Events, rows: Ints, there: Bools, *, marks: bool) -> _KeyOrder:
        """Orders the events; with `marks` no event ends a period, and deleting images have values."""
        rows = rows[np.argsort(events.life[rows], kind="stable")]
        life, oper = events.life[rows], events.oper[rows]
        goes = (oper == DELETE) | (oper == BEFORE)
        ends = goes & (not marks)
        begins = (oper == INSERT) | (events.old[rows] >= 0)
        first = np.ones(len(rows), np.bool_)
        first[1:] = life[1:] != life[:-1]
        again = np.zeros(len(rows), np.bool_)
        again[1:] = ends[:-1]
        at = np.arange(len(rows))
        start = np.maximum.accumulate(np.where(first | begins | again, at, 0)) if len(rows) else at
        place = np.full(len(events), -1, np.int64)
        place[rows] = at
        came = np.where(events.old[rows] >= 0, place[events.old[rows]], -1)
        target = (first & ~begins & events.begins_met[rows])[start]
        before, names = events.before[rows][start], ~goes | marks
        return _KeyOrder(rows, events.key[rows], ends, names, start, came, target, before, there)

    def values(self, events: Ints) -> tuple[Ints, Ints]:
        """Returns `follow` for all columns."""
        result = [self.follow(column, events) for column in range(self.there.shape[1])]
        source, origin = (np.stack(found, 1) for found in zip(*result, strict=True))
        return source, origin

    def follow(self, column: int, events: Ints) -> tuple[Ints, Ints]:
        """Returns for each event the row with a column's value, and the key whose target row has it, if that
        row exists."""
        at = np.arange(len(self.rows))
        named = self.there[self.rows, column] & self.names
        newest = np.maximum.accumulate(np.where(named, at, -1)) if len(at) else at
        filled = np.where((self.before >= 0) & self.there[self.before, column], self.before, -1)
        own = named[events]
        source, origin = np.where(own, self.rows[events], -1), np.full(len(events), -1)
        open_ = np.flatnonzero(~own)
        now = events[open_]
        while len(open_):
            start, value = self.start[now], newest[now]
            known = value >= start
            source[open_[known]] = self.rows[value[known]]
            old = ~known & self.target[now]
            origin[open_[old]] = self.key[now[old]]
            came = self.moved_from[start]
            further = ~known & ~old & (came >= 0)
            ended = ~known & ~further
            source[open_[ended]] = filled[now[ended]]
            open_, now = open_[further], came[further]
        return source, origin
