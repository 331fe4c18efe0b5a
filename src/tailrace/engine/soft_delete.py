"""Handles the marks of soft delete.

A delete, and the old key of a key change, is an image of a row that stays. It has the key and the mark. All
other images clear the mark.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.change import BEFORE, DELETE
from .columns import SEQ, one
from .decide import Decided
from .events import Events
from .source import Source

Bools = npt.NDArray[np.bool_]


def add_marks(
    source: Source, events: Events, decided: Decided, carried: Bools | None
) -> tuple[Source, Bools | None]:
    """Returns the changes with their marks, and which columns each image has then (None: all).

    `carried` is which of the columns except the mark each image has; None for all.
    """
    assert source.mark is not None  # noqa: S101 - called for soft delete only
    marks = decided.effective & ((events.oper == DELETE) | (events.oper == BEFORE))
    if not marks.any() and carried is None:
        return source, None
    place = source.schema.names.index(source.mark)
    mark = pc.if_else(pa.array(marks), one(source.rows[SEQ]), pa.scalar(None, pa.string()))
    rows = source.rows.set_column(source.rows.schema.names.index(source.mark), source.mark, mark)
    there = np.ones((len(events), len(source.schema)), np.bool_)
    if carried is not None:
        there[:, np.arange(there.shape[1]) != place] = carried
    rest = [n not in (*source.key, source.mark) for n in source.schema.names]
    there[np.ix_(marks, rest)] = False
    return replace(source, rows=rows), there
