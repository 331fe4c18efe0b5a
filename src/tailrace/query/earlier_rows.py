"""Rows before a range that its changes do not contain, read from versions of the target or from earlier
changes.

They are missing if the source sends no before images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..engine.change_arrays import ChangeArrays, Ints
from ..engine.columns import one
from ..engine.earlier_rows import incomplete_images
from ..engine.keys import Keys
from ..errors import TailraceError
from ..model import sequence
from ..model.positions import ChangeSeq

EarlierRows = Callable[[Ints], pa.Table]
"""Function that takes the indexes of change images and returns earlier rows, including those with
their keys."""


def add_earlier_rows(found: ChangeArrays, known: Iterable[EarlierRows]) -> ChangeArrays:
    """Returns the changes with the earlier rows that they do not contain.

    Each function of `known` is called for the rows that the ones before it did not return. Rows that none
    returns stay unknown, and the result marks them.
    """
    images, parts = incomplete_images(found), list[pa.Table]()
    if not len(images):
        return found
    for ask in known:
        try:
            rows = ask(images)
        except TailraceError:
            continue
        keys = Keys([one(found.rows[n]).take(pa.array(images)) for n in found.key])
        place = keys.find([one(rows[n]) for n in found.key])
        parts.append(rows.filter(pa.array(place >= 0)))
        images = images[~np.isin(keys.place, place)]
        if not len(images):
            break
    if not parts:
        return found
    return replace(found, earlier=pa.concat_tables(parts, promote_options="default"))


def previous_seq(seq: ChangeSeq) -> ChangeSeq | None:
    """Returns the change sequence directly before another one; None for the smallest one.

    >>> previous_seq(ChangeSeq("20261122100011000000000000000000011"))
    '20261122100011000000000000000000010'
    """
    if len(seq) != sequence.WIDTH or not seq.isdecimal() or not int(seq):
        return None
    return ChangeSeq(f"{int(seq) - 1:0{sequence.WIDTH}d}")
