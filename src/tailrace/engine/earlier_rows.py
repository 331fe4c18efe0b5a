"""Rows of before a range of changes, which the range itself does not tell."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .change_arrays import ChangeArrays, I, Ints, U
from .columns import one
from .keys import Keys
from .lines import Lines


def partly_told(changes: ChangeArrays) -> Ints:
    """The images whose row was there before the changes, and is not told as a whole by them: the first of
    their key, an update's without a before image, or one that lacks columns."""
    if not changes.key or not ((changes.oper == U).sum() > len(changes.befores) or changes.sparse):
        return np.zeros(0, np.int64)
    number = Keys([one(changes.rows[n]) for n in changes.key]).place
    end = changes.truncates[0] if len(changes.truncates) else len(changes)
    first = np.unique(number[:end], return_index=True)[1]
    came = np.zeros(len(changes), np.bool_)
    came[changes.befores + 1] = number[changes.befores] != number[changes.befores + 1]
    tells = changes.whole & (changes.oper != U)
    found: Ints = first[(changes.oper[first] != I) & ~came[first] & ~tells[first]]
    return found


def living(changes: ChangeArrays) -> pa.Table:
    """The rows that are there after these changes, as far as they tell, with `header__absent`."""
    lines = Lines.of(changes)
    begins, ends = lines.versions
    return lines.take(begins[ends < 0])
