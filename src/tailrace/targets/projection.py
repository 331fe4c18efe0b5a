"""A mapping without expressions and criteria: renamed columns and constants. It needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..model import mask
from .images import ordinals


@dataclass(frozen=True)
class Projection:
    """Mapping of a target's columns.

    Attributes:
        sources: target column -> the source's column.
        constants: target column -> its text in every row.
    """

    sources: Mapping[str, str]
    constants: Mapping[str, str]

    def then(self, sources: Mapping[str, str], constants: Mapping[str, str]) -> Projection:
        """Returns the projection that applies another one (its `sources` and `constants`) after this one."""
        earlier = {name: self.constants[c] for name, c in sources.items() if c in self.constants}
        rest = {name: self.sources[c] for name, c in sources.items() if c in self.sources}
        return Projection(rest, {**earlier, **constants})

    def mask_bits(self, names: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
        """Returns the bits of a target's columns in the masks of a change table with the columns `names`;
        every image carries constants.

        >>> Projection({"id": "key"}, {"site": "eu"}).mask_bits(["seq", "key"], ["site", "id"])
        (-1, 1)
        """
        found = ordinals(names, [self.sources.get(name, name) for name in columns])
        return tuple(mask.ALWAYS if n in self.constants else at for n, at in zip(columns, found, strict=True))

    def column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """Returns a column of the target from rows of the source; NULL if they have no such column.

        >>> rows = pa.RecordBatch.from_pydict({"key": [1, 2]})
        >>> projection = Projection({"id": "key"}, {"site": "eu"})
        >>> [projection.column(rows, pa.field(n, kind)).to_pylist()
        ...     for n, kind in (("id", pa.int64()), ("site", pa.string()), ("key", pa.int32()))]
        [[1, 2], ['eu', 'eu'], [None, None]]
        """
        if field.name in self.constants:
            return pa.repeat(pa.scalar(self.constants[field.name], field.type), rows.num_rows)
        return column(rows, self.sources.get(field.name), field)


def column(rows: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
    """Returns a column in a field's type; NULL if the rows do not have it."""
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    return rows[name].cast(field.type)
