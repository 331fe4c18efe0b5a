"""The change rows of a batch in arrays, their keys and changes numbered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..model.change import BEFORE, UPDATE

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """The change rows of a batch without truncates, in order of (`change_seq`, `change_oper`).

    Attributes:
        oper: the operation of each, one letter.
        change: the number of each row's change sequence: 0, 1, ...; B and U of an update have the same.
        key: the number of each row's key.
        bad: which rows are of a change whose values the target cannot hold; None: none is.
    """

    oper: npt.NDArray[np.str_]
    change: Ints
    key: Ints
    bad: Bools | None = None

    def __len__(self) -> int:
        return len(self.oper)

    @cached_property
    def before(self) -> Ints:
        """Of each update its B row, -1 where it has none; of each B row itself; of others -1."""
        many = int(self.change[-1]) + 1 if len(self) else 0
        found = np.full(many, -1, np.int64)
        before = np.flatnonzero(self.oper == BEFORE)
        found[self.change[before]] = before
        mine = (self.oper == UPDATE) | (self.oper == BEFORE)
        return np.where(mine, found[self.change], -1)

    @cached_property
    def old(self) -> Ints:
        """Of each update its B row, when that has another key; else -1."""
        moving = self.oper == UPDATE if self.bad is None else (self.oper == UPDATE) & ~self.bad
        old = np.where(moving, self.before, -1)
        return np.where((old >= 0) & (self.key[old] != self.key), old, -1)

    @cached_property
    def moves(self) -> Ints:
        """The updates that change their key."""
        return np.flatnonzero(self.old >= 0)
