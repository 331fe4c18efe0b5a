"""A mapping without expressions and criteria: columns under other names, and constants. It needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..model import mask
from .images import ordinals


@dataclass(frozen=True)
class Projection:
    """Where the columns of a target come from.

    Attributes:
        sources: target column -> the source's column.
        constants: target column -> its text in every row.
    """

    sources: Mapping[str, str]
    constants: Mapping[str, str]

    def then(self, sources: Mapping[str, str], constants: Mapping[str, str]) -> Projection:
        """The projection that applies another one (its `sources` and `constants`) after this one."""
        mine = {name: self.constants[of] for name, of in sources.items() if of in self.constants}
        rest = {name: self.sources[of] for name, of in sources.items() if of in self.sources}
        return Projection(rest, {**mine, **constants})

    def mask_bits(self, names: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
        """The bits of a target's columns in the masks of its source's change table, which has these `names`;
        every image carries constants.

        >>> Projection({"id": "key"}, {"site": "eu"}).mask_bits(["seq", "key"], ["site", "id"])
        (-1, 1)
        """
        found = ordinals(names, [self.sources.get(name, name) for name in columns])
        return tuple(mask.ALWAYS if n in self.constants else at for n, at in zip(columns, found, strict=True))

    def column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """A column of the target, from rows of the source; NULL where these have nothing for it.

        >>> rows = pa.RecordBatch.from_pydict({"key": [1, 2]})
        >>> made = Projection({"id": "key"}, {"site": "eu"})
        >>> [made.column(rows, pa.field(n, kind)).to_pylist()
        ...     for n, kind in (("id", pa.int64()), ("site", pa.string()), ("key", pa.int32()))]
        [[1, 2], ['eu', 'eu'], [None, None]]
        """
        if field.name in self.constants:
            return pa.repeat(pa.scalar(self.constants[field.name], field.type), rows.num_rows)
        return column(rows, self.sources.get(field.name), field)


def column(rows: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
    """The column of that name in a field's type; NULL where the rows have none."""
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    return rows[name].cast(field.type)
