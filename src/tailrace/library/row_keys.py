"""Keys of rows to look up in a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import types

from ..engine.columns import one
from ..engine.keys import Keys

_ORDERED = (types.is_integer, types.is_string, types.is_temporal, types.is_decimal)


@dataclass(frozen=True)
class RowKeys:
    """The keys of rows: columns of a target, by name."""

    table: pa.Table

    @property
    def names(self) -> list[str]:
        """The names of the key's columns."""
        return list(self.table.column_names)

    def with_keys_of(self, rows: pa.Table, names: Sequence[str]) -> RowKeys:
        """Returns these keys and those of other rows, in the same types.

        Args:
            names: the other rows' key columns, in order.
        """
        columns = [rows[n].cast(f.type) for n, f in zip(names, self.table.schema, strict=True)]
        return RowKeys(pa.concat_tables([self.table, pa.table(columns, names=self.names)]))

    def range_filter(self, schema: pa.Schema) -> ds.Expression | None:
        """Returns a filter that all of these rows satisfy, to skip files; None if none exists."""
        name = self.names[0]
        column = self.table[name]
        if schema.field(name).type != column.type or not any(is_one(column.type) for is_one in _ORDERED):
            return None
        ends = pc.min_max(column)
        return (pc.field(name) >= ends["min"]) & (pc.field(name) <= ends["max"])

    def contained(self, rows: pa.Table) -> pa.Array:
        """Returns for each row whether it has one of the keys."""
        columns = [one(rows[f.name]).cast(f.type) for f in self.table.schema]
        return pa.array(self._keys.find(columns) >= 0)

    @cached_property
    def _keys(self) -> Keys:
        return Keys([one(self.table[n]) for n in self.names])
