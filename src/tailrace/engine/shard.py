"""A shard of changes that are all applied: all changes of some keys, and the existing rows with these
keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from .batch import Changes, folded, taken_and_added
from .columns import ADD, TAKE, carried, one
from .keys import Places
from .source import Source, ordered


@dataclass(frozen=True)
class Shard:
    """Changes, and the rows under their keys before them.

    Attributes:
        source: the changes, in order; rows of a keyless table are identified by all of their values.
        changes: the changes of `source`, numbered.
        there: the existing rows, in the columns of `source.schema`; those that were not read are NULL.
        number: the number of the key of each.
        ordinals: the bits of the columns in column masks.
    """

    source: Source
    changes: Changes
    there: pa.Table
    number: Places
    ordinals: tuple[int, ...]

    @staticmethod
    def of(
        rows: pa.Table, there: pa.Table, key: tuple[str, ...], schema: pa.Schema, ordinals: tuple[int, ...]
    ) -> Shard:
        """Numbers the keys.

        Args:
            rows: `SEQ`, `OPER`, `schema`, and perhaps `MASK`; in any order.
            there: as in `Shard`; rows whose keys no change has are skipped.
            key: names of the key's columns; empty for a keyless table.
        """
        source = Source.of(ordered(rows), key, schema, partial=False)
        number = source.keys.find([one(there[n]) for n in source.known_by])
        named = number >= 0
        return Shard(source, Changes.of(source, ()), there.filter(pa.array(named)), number[named], ordinals)

    def images(self) -> pa.Table:
        """Returns the resulting images: one row per key (`OP`, `KEPT`, the columns of the schema).

        For a keyless table, one row per distinct row, with `TAKE` and `ADD`.
        """
        if not self.source.key:
            return self._net()
        there = carried(self.source.rows, self.ordinals)
        return folded(self.source, self.changes.events, there, self._rows_of).lasting()

    @cached_property
    def _row_index(self) -> Places:
        """The index in `there` for each key number; -1 if it has no row. The last entry is for rows without a
        key."""
        found = np.full(len(self.source.last) + 1, -1, np.int64)
        found[self.number] = np.arange(len(self.number))
        return found

    def _rows_of(self, wanted: Places) -> tuple[Places, pa.Table]:
        known = wanted[self._row_index[wanted] >= 0]
        return known, self.there.select(self.source.schema.names).take(pa.array(self._row_index[known]))

    def _net(self) -> pa.Table:
        take, add = taken_and_added(self.source, self.changes.events)
        changed = np.flatnonzero(take | add)
        rows = self.source.rows.select(self.source.schema.names).take(pa.array(self.source.last[changed]))
        return rows.add_column(0, ADD, pa.array(add[changed])).add_column(0, TAKE, pa.array(take[changed]))
