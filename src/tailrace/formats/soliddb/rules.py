"""Selects the records of a table, and those that are no changes, in arrays.

Source: spec/soliddb.md §2-§5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE
from ...wire.soliddb_address import RANKS
from ..base import RAW, WHY
from .log import (
    CAPTURE_OFF,
    COMMIT,
    DDL,
    RANK,
    REC_BEFORE,
    REC_DELETE,
    REC_INSERT,
    REC_UPDATE,
    START,
    checked,
    is_row,
    is_truncate,
    truncated_names,
    with_reasons,
)  # fmt: skip
from .tables import SolidLayout

MARK, MADE, MOVES = "_mark", "_made", "_moves"
"""Columns added to records: whether a record is a mark of a transaction, has a LOGADDR derived from a change
sequence, inserts or deletes."""
CHANGE, OFF = "_change", "_off"
"""Columns added to the records of a complete log: whether a record is a change of a known table; whether it
starts a transaction with CAPTURE_OFF."""
LAYOUT = "_layout"
"""Column added to a table's records: the index of the layout of their DATA."""
JUDGED_BY = ("RECID", "RECNAME", "TRXID", "RELID", "FLAGS", "LOGADDR", "DATA", WHY)
"""The columns of a record that rules need; DATA only of DDL, and whether it exists."""
_RECIDS_OF_RANK = {
    RANKS[BEFORE]: (REC_BEFORE, REC_DELETE), RANKS[DELETE]: (REC_DELETE,), RANKS[INSERT]: (REC_INSERT,),
    RANKS[UPDATE]: (REC_UPDATE, REC_INSERT), RANKS[TRUNCATE]: (DDL,),
}  # fmt: skip


@dataclass(frozen=True)
class OfTable:
    """Selects a table's good records and the transaction marks, with the index of their layout.

    Attributes:
        mine: the table's layouts.
        all: the layouts of every table.
        length: bytes of a LOGADDR.
    """

    mine: tuple[SolidLayout, ...]
    all: tuple[SolidLayout, ...]
    length: int

    def added(self) -> dict[str, pa.DataType]:
        """The columns that it adds to records."""
        flag = pa.bool_()
        return {WHY: pa.string(), RANK: pa.int32(), LAYOUT: pa.int32(), MADE: flag, MARK: flag, MOVES: flag}

    def judged(self, log: pa.RecordBatch) -> tuple[pa.Array, dict[str, pa.Array]]:
        """Returns which records (`JUDGED_BY`) are selected, and the additional columns."""
        recid = log["RECID"]
        mine = pc.and_(is_row(recid), _among(log["RELID"], {x.relid for x in self.mine}))
        mine = pc.or_(mine, _empties(log, self.mine, self.all))
        stays, rank, why = checked(log, self.length)
        taken = pc.and_(pc.and_(pc.or_(mine, _among(recid, (START, COMMIT))), stays), why.is_null())
        layout = _layout_of(log, self.mine)
        return taken, {WHY: why, RANK: rank, LAYOUT: layout, MADE: _is_derived(rank, recid), **_marked(recid)}

    def __call__(self, log: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the selected records of a log, with the additional columns and without `RAW`."""
        some = {*(x.relid for x in self.mine)}
        # Records of other tables need no checks; `judged` decides on the rest.
        other = pc.and_(is_row(log["RECID"]), pc.invert(_among(log["RELID"], some)))
        return _with(log.filter(pc.invert(other)), self)


@dataclass(frozen=True)
class OfLog:
    """Selects all records, with `CHANGE`: whether they are changes of one of the tables.

    Attributes:
        all: the layouts of every table.
        some: whether only some tables are wanted; then records of others are not bad.
        length: bytes of a LOGADDR.
    """

    all: tuple[SolidLayout, ...]
    some: bool
    length: int

    def added(self) -> dict[str, pa.DataType]:
        """The columns that it adds to records."""
        flags = dict.fromkeys((CHANGE, OFF, MADE, MARK, MOVES), pa.bool_())
        return {WHY: pa.string(), **flags}

    def judged(self, log: pa.RecordBatch) -> tuple[pa.Array, dict[str, pa.Array]]:
        """Returns which records (`JUDGED_BY`) are selected, and the additional columns."""
        stays, rank, why = checked(log, self.length)
        recid = log["RECID"]
        rows, known = is_row(recid), _among(log["RELID"], {x.relid for x in self.all})
        if not self.some:
            unknown = pc.and_(rows, pc.invert(known))
            why = with_reasons(why, (unknown, lambda: _unknown(log["RELID"])))
        good = why.is_null()
        change = pc.and_(good, pc.or_(pc.and_(rows, known), _empties(log, self.all, self.all)))
        off = pc.and_(pc.equal(recid, START), pc.not_equal(pc.bit_wise_and(log["FLAGS"], CAPTURE_OFF), 0))
        result = pc.and_(_is_derived(rank, recid), good)
        flags = {CHANGE: change, OFF: pc.and_(pc.fill_null(off, False), good), MADE: result}
        return stays, {WHY: why, **flags, **_marked(recid)}

    def __call__(self, log: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the records of a log, with the additional columns."""
        return _with(log, self)


def _with(log: pa.RecordBatch, rule: OfTable | OfLog) -> pa.RecordBatch:
    """Returns the records that a rule selects, with its additional columns."""
    taken, more = rule.judged(log)
    kept = [n for n in log.schema.names if n not in more and (n != RAW or isinstance(rule, OfLog))]
    arrays = [*(log[n] for n in kept), *more.values()]
    result = pa.RecordBatch.from_arrays(arrays, names=[*kept, *more])
    return result if taken.true_count == len(taken) else result.filter(taken)


def _among(values: pa.Array, some: Iterable[int]) -> pa.Array:
    """Whether a number is among `some`; false for NULL."""
    return pc.is_in(values, pa.array(list(some), values.type))


def _marked(recid: pa.Array) -> Mapping[str, pa.Array]:
    return {MARK: _among(recid, (START, COMMIT)), MOVES: _among(recid, (REC_INSERT, REC_DELETE))}


def _unknown(relid: pa.Array) -> pa.Array:
    number = pc.fill_null(relid.cast(pa.string()), "NULL")
    return pc.binary_join_element_wise("RELID ", number, " is in no SYS_TABLES with SYS_COLUMNS", "")


def _empties(log: pa.RecordBatch, mine: Sequence[SolidLayout], all: Sequence[SolidLayout]) -> pa.Array:
    """Whether a record is a truncate of one of the tables `mine`: by RELID, or, if no table has the RELID, by
    the name in DATA if only one table has it."""
    found = is_truncate(log["RECID"], log["DATA"])
    if not found.true_count:
        return found
    tables: dict[str, set[str]] = {}
    for x in all:
        for name in x.names:
            tables.setdefault(name, set()).add(x.table)
    wanted = {x.table for x in mine}
    names = [n for n, its in tables.items() if len(its) == 1 and its <= wanted]
    relid = pc.fill_null(log["RELID"], 0)
    named = pc.is_in(
        truncated_names(pc.if_else(found, log["DATA"], None)),
        pa.array([n.encode() for n in names], pa.binary()),
    )
    by_name = pc.and_(pc.invert(_among(relid, {x.relid for x in all})), named)
    return pc.and_(found, pc.or_(_among(relid, {x.relid for x in mine}), by_name))


def _layout_of(log: pa.RecordBatch, mine: Sequence[SolidLayout]) -> pa.Array:
    """Returns the index in `mine` of the layout that is valid for a row record; NULL if no layout is."""
    found = np.full(log.num_rows, -1, np.int32)
    for place, x in sorted(enumerate(mine), key=lambda p: p[1].start):
        fits = pc.fill_null(pc.equal(log["RELID"], x.relid), True)
        if x.start:
            fits = pc.and_(fits, pc.fill_null(pc.greater_equal(log["LOGADDR"], x.start), False))
        found[fits.to_numpy(zero_copy_only=False)] = place
    rows = is_row(log["RECID"]).to_numpy(zero_copy_only=False)
    return pa.array(found, mask=~rows | (found < 0))


def _is_derived(rank: pa.Array, recid: pa.Array) -> pa.Array:
    """Whether a row record has a LOGADDR that was derived from a change sequence: by its rank."""
    found: pa.Array = pa.array(np.zeros(len(rank), np.bool_))
    if rank.null_count == len(rank):
        return found
    for one, recids in _RECIDS_OF_RANK.items():
        mine = pc.and_(pc.fill_null(pc.equal(rank, one), False), _among(recid, recids))
        found = pc.or_(found, mine)
    return found
