"""The changes of a table as rows, with their keys for lookups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.change import BEFORE, DELETE
from .columns import KEPT, OP, OPER, SEQ, UPSERT, one
from .keys import Keys, Places
from .missing_values import ValueOrigins

RowsOf = Callable[[Places], tuple[Places, pa.Table]]
"""A function that takes key numbers, and returns those for which the table has rows, and the rows."""


@dataclass(frozen=True)
class Source:
    """Changes of a table, and their keys.

    Attributes:
        rows: folded rows (`OP`, `KEPT` if `partial`, the data columns), or images (`SEQ`, `OPER`, the data
            columns).
        key: names of the key's columns. If empty, rows are identified by all of their values.
        last: the deciding row of each key number; -1 if it has none.
        deletes: which rows delete. In a keyless table with `net`, every removed row is deleted.
        mark: the column that marks deleted rows of the table, if it has one.
        net: for a keyless table, the number of copies that each distinct row gains, once known.
    """

    rows: pa.Table
    key: tuple[str, ...]
    schema: pa.Schema
    partial: bool
    keys: Keys
    last: Places
    deletes: npt.NDArray[np.bool_]
    mark: str | None = None
    net: Places | None = None

    @property
    def known_by(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self.key or tuple(self.schema.names)

    @staticmethod
    def of(rows: pa.Table, key: tuple[str, ...], schema: pa.Schema, partial: bool) -> Source:
        """Prepares changes for lookups; `key` is empty for a keyless table."""
        rows = rows.combine_chunks()
        folded = OP in rows.schema.names
        names = key or tuple(schema.names)
        keys = Keys([one(rows[k]) for k in names], None if folded else order(rows))
        deletes = pc.is_in(rows[OP if folded else OPER], value_set=pa.array([DELETE, BEFORE]))
        return Source(rows, key, schema, partial, keys, keys.last, np.asarray(deletes.to_numpy(), np.bool_))

    def joined(self, first: Places) -> Source:
        """Returns the changes with some keys merged into one; see `Keys.joined`."""
        keys = self.keys.joined(first)
        return replace(self, keys=keys, last=keys.last)

    def lasting(self) -> pa.Table:
        """Returns one row per key: `OP`, `KEPT` and the data columns."""
        places = self.last[self.last >= 0]
        gone, rows = self.deletes[places], self.rows.take(pa.array(places))
        kept = pa.nulls(len(places), pa.string())
        if self.partial:
            stays = pc.and_(pc.match_substring(one(rows[KEPT]), "1"), pa.array(~gone))
            kept = pc.if_else(stays, one(rows[KEPT]), kept)
        op = pa.array(np.where(gone, DELETE, UPSERT), pa.string())
        return pa.table([op, kept, *[rows[n] for n in self.schema.names]], [OP, KEPT, *self.schema.names])

    def images(self, changes: Places, old: pa.RecordBatch | None = None) -> pa.Table:
        """Returns the new rows of changes; `old` has their rows in the target, for absent values."""
        new = self.rows.select(self.schema.names).take(pa.array(changes))
        if not self.partial or old is None:
            return new
        kept = self.rows[KEPT].take(pa.array(changes))
        columns = []
        for i, name in enumerate(self.schema.names):
            stays = pc.equal(pc.utf8_slice_codeunits(kept, i, i + 1), "1").fill_null(False)
            columns.append(pc.if_else(stays, old[name], new[name]))
        return pa.table(columns, schema=self.schema)


def whole(source: Source, carried: ValueOrigins, rows_of: RowsOf) -> Source:
    """Returns one row per key, with absent values filled from earlier images and from target rows of other
    keys.

    Values that the key's own target row has are kept there (`KEPT`).
    """
    named = np.array([n in source.key for n in source.schema.names])
    own = (carried.origin == carried.key[:, None]) & ~named
    foreign = (carried.origin >= 0) & ~own & ~named
    keys, there = rows_of(np.unique(carried.origin[foreign]))
    place = np.full(len(source.last), -1, np.int64)
    place[keys] = np.arange(len(keys))
    columns = []
    for i, field in enumerate(source.schema):
        at = np.where(foreign[:, i], place[carried.origin[:, i]], -1)
        mine = one(source.rows[field.name])
        if named[i]:
            columns.append(mine.take(pa.array(carried.rows)))
            continue
        columns.append(chosen(mine, carried.source[:, i], one(there[field.name]), at))
    flags = np.ascontiguousarray(np.where(own, b"1", b"0")).view(f"S{own.shape[1]}").ravel()
    schema = source.schema.append(pa.field(KEPT, pa.string()))
    rows = pa.table([*columns, pa.array(flags).cast(pa.string())], schema=schema)
    last = np.full(len(source.last), -1, np.int64)
    last[carried.key] = np.arange(len(carried.key))
    return replace(source, rows=rows, partial=True, last=last, deletes=carried.deletes)


def chosen(mine: pa.Array, at: Places, theirs: pa.Array, place: Places) -> pa.Array:
    """Returns values from the target (`place`), else from the changes (`at`); -1 is neither."""
    own = _taken(mine, at)
    return pc.if_else(pa.array(place >= 0), _taken(theirs, place), own) if (place >= 0).any() else own


def _taken(values: pa.Array, at: Places) -> pa.Array:
    """Returns the values at these indexes; NULL for -1."""
    return values.take(pa.array(at, mask=at < 0))


def ordered(rows: pa.Table) -> pa.Table:
    """Returns images in order of their changes."""
    rows = rows.combine_chunks()
    places = order(rows)
    return rows if places is None else rows.take(pa.array(places)).combine_chunks()


def order(rows: pa.Table) -> Places | None:
    """Returns the indexes of images in order; None if they are in order already, as usual."""
    seq = one(rows[SEQ])
    if pc.all(pc.less(seq[:-1], seq[1:])).as_py() is not False:
        return None
    found = pc.sort_indices(rows.select([SEQ, OPER]), [(SEQ, "ascending"), (OPER, "ascending")])
    return np.asarray(found.to_numpy(), np.int64)
