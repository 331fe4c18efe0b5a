"""A mapping without expressions and criteria: columns under other names, and constants. It needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..model import mask
from .images import ordinals

if TYPE_CHECKING:
    from ..apply.mapping.prepare import Prepared


@dataclass(frozen=True)
class Projection:
    """Where the columns of a target come from.

    Attributes:
        sources: target column -> the source's column.
        constants: target column -> its text in every row.
    """

    sources: Mapping[str, str]
    constants: Mapping[str, str]

    @staticmethod
    def of(steps: Sequence[Prepared]) -> Projection | None:
        """What the steps come to, one after the other; None: they look at values, or leave columns of the
        target as they are, or to be given another type."""
        made: Projection | None = None
        for step in steps:
            types = {c.name: c.type for c in step.source.columns}
            if step.where is not None or any(p.absent or p.expression is not None for p in step.parts):
                return None
            if any(p.source is not None and types[p.source] != p.column.type for p in step.parts):
                return None
            sources = {p.column.name: p.source for p in step.parts if p.source is not None}
            constants = {p.column.name: p.constant for p in step.parts if p.constant is not None}
            made = Projection(sources, constants) if made is None else made._then(sources, constants)
        return made

    def _then(self, sources: Mapping[str, str], constants: Mapping[str, str]) -> Projection:
        mine = {name: self.constants[of] for name, of in sources.items() if of in self.constants}
        rest = {name: self.sources[of] for name, of in sources.items() if of in self.sources}
        return Projection(rest, {**mine, **constants})

    def places(self, names: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
        """The bits of a target's columns in the masks of its source's change table, which has these `names`;
        every image carries constants.

        >>> Projection({"id": "key"}, {"site": "eu"}).places(["seq", "key"], ["site", "id"])
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
