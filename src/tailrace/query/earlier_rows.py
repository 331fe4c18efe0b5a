"""Rows of before a range that its changes do not tell: a source without before images leaves them out, and
the target's versions or earlier changes have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..engine.change_arrays import ChangeArrays, Ints
from ..engine.columns import one
from ..engine.earlier_rows import partly_told
from ..engine.keys import Keys
from ..errors import TailraceError
from ..model import sequence
from ..model.positions import ChangeSeq

Earlier = Callable[[Ints], pa.Table]
"""What knows rows of before: takes images of changes, gives rows that have their keys, among others."""


def with_earlier(found: ChangeArrays, known: Iterable[Earlier]) -> ChangeArrays:
    """The changes with the rows of before that they do not tell, as far as one of `known` does: each is asked
    for those that the ones before it do not have. A row that none has is unknown, as the answer says."""
    images, parts = partly_told(found), list[pa.Table]()
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


def just_before(seq: str) -> ChangeSeq | None:
    """The last change sequence that is before another one; None: there is none.

    >>> just_before("20261122100011000000000000000000011")
    '20261122100011000000000000000000010'
    """
    if len(seq) != sequence.WIDTH or not seq.isdecimal() or not int(seq):
        return None
    return ChangeSeq(f"{int(seq) - 1:0{sequence.WIDTH}d}")
