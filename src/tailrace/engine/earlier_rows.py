"""Rows before a range of changes that the range does not contain completely."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .change_arrays import ChangeArrays, I, Ints, U
from .columns import one
from .key_timelines import KeyTimelines
from .keys import Keys


def incomplete_images(changes: ChangeArrays) -> Ints:
    """Returns the images whose row existed before the changes and is not completely known from them.

    These are first images of their key: of an update without a before image, or with missing columns.
    """
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


def rows_after(changes: ChangeArrays) -> pa.Table:
    """Returns the rows after these changes, as far as known, with `header__absent`."""
    lines = KeyTimelines.of(changes)
    begins, ends = lines.versions
    return lines.take(begins[ends < 0])
