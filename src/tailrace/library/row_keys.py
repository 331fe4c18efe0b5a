"""Keys of rows that are looked up in a target."""

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
    """The rows with these keys: columns of a target, by name."""

    table: pa.Table

    @property
    def names(self) -> list[str]:
        """The names of the key's columns."""
        return list(self.table.column_names)

    def more(self, rows: pa.Table, names: Sequence[str]) -> RowKeys:
        """With the keys of other rows, in the same types; `names`: their key's columns, in order."""
        columns = [rows[n].cast(f.type) for n, f in zip(names, self.table.schema, strict=True)]
        return RowKeys(pa.concat_tables([self.table, pa.table(columns, names=self.names)]))

    def range(self, schema: pa.Schema) -> ds.Expression | None:
        """What holds for all of these rows, to leave out files; None: nothing is known."""
        name = self.names[0]
        column = self.table[name]
        if schema.field(name).type != column.type or not any(is_one(column.type) for is_one in _ORDERED):
            return None
        ends = pc.min_max(column)
        return (pc.field(name) >= ends["min"]) & (pc.field(name) <= ends["max"])

    def among(self, rows: pa.Table) -> pa.Array:
        """Which rows have one of the keys."""
        columns = [one(rows[f.name]).cast(f.type) for f in self.table.schema]
        return pa.array(self._keys.find(columns) >= 0)

    @cached_property
    def _keys(self) -> Keys:
        return Keys([one(self.table[n]) for n in self.names])
