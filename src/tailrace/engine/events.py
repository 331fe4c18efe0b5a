"""The change rows of a batch as arrays, with numbered keys and changes.

Truncates divide a batch into *epochs*: rows from before the last one do not remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.change import BEFORE, TRUNCATE, UPDATE

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """The change rows of a batch, in order of (`change_seq`, `change_oper`).

    Attributes:
        oper: the operation, one letter.
        change: the number of the change sequence: 0, 1, ...; the same for B and U of an update.
        key: the number of the key.
        bad: which rows belong to a change whose values the target cannot hold; None if none.
        epoch: the number of truncates before each row; None without truncates.
        truncates: the number of truncates.
    """

    oper: npt.NDArray[np.str_]
    change: Ints
    key: Ints
    bad: Bools | None = None
    epoch: Ints | None = None
    truncates: int = 0

    def __len__(self) -> int:
        return len(self.oper)

    @cached_property
    def before(self) -> Ints:
        """The B row of each update (-1 if it has none), and each B row itself; -1 for others."""
        many = int(self.change[-1]) + 1 if len(self) else 0
        found = np.full(many, -1, np.int64)
        before = np.flatnonzero(self.oper == BEFORE)
        found[self.change[before]] = before
        mine = (self.oper == UPDATE) | (self.oper == BEFORE)
        return np.where(mine, found[self.change], -1)

    @cached_property
    def old(self) -> Ints:
        """The B row of each applicable update that changes the key; else -1."""
        return self.former if self.bad is None else np.where(self.bad, -1, self.former)

    @cached_property
    def former(self) -> Ints:
        """Like `old`, and also for updates whose values the target cannot hold, for the key log."""
        old = np.where(self.oper == UPDATE, self.before, -1)
        return np.where((old >= 0) & (self.key[old] != self.key), old, -1)

    @cached_property
    def moves(self) -> Ints:
        """The updates that change their key."""
        return np.flatnonzero(self.old >= 0)

    @cached_property
    def life(self) -> Ints:
        """The number of each row's key, distinct per epoch."""
        if self.epoch is None:
            return self.key
        return self.epoch * (int(self.key.max(initial=0)) + 1) + self.key

    @property
    def begins_met(self) -> Bools:
        """Which rows can find rows that the target had before the batch."""
        return np.ones(len(self), np.bool_) if self.epoch is None else self.epoch == 0

    @property
    def lasting(self) -> Bools:
        """Which rows are not followed by a truncate."""
        return self.behind(self.truncates)

    def behind(self, truncates: int) -> Bools:
        """Returns which rows are after the given number of truncates, and before the next one."""
        if self.epoch is None:
            return np.ones(len(self), np.bool_)
        return np.asarray((self.epoch == truncates) & (self.oper != TRUNCATE), np.bool_)


def epochs(seq: pa.StringArray, truncates: Sequence[str]) -> Ints:
    """Returns the number of truncates before each change sequence.

    >>> epochs(pa.array(["1", "2", "3", "3"]), ["2"]).tolist()
    [0, 0, 1, 1]
    """
    both = pa.concat_arrays([pa.array(truncates, seq.type), seq])
    rank = pc.rank(both, tiebreaker="dense").to_numpy()
    return np.asarray(np.searchsorted(np.sort(rank[: len(truncates)]), rank[len(truncates) :]), np.int64)
