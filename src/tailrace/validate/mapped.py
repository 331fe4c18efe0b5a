"""What validation compares if a target is mapped, or does not follow every DDL statement of its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ..apply.images import col
from ..apply.mapping.mapped import rows
from ..apply.mapping.prepare import Prepared
from ..apply.mapping.projection import Projection
from ..model.change import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Made:
    """What a target makes of its source: the `source`'s layout that it has reached, the layout it `follows`
    (without ignored DDL), its mapping."""

    source: Relation
    follows: Relation
    mapping: Prepared | None

    @property
    def relation(self) -> Relation:
        """The target's layout."""
        return self.mapping.relation if self.mapping else self.follows

    @property
    def projection(self) -> Projection | None:
        """The mapping, if it needs no Spark; None: it does, or there is none."""
        return Projection.of([self.mapping]) if self.mapping is not None else None

    @property
    def whole(self) -> bool:
        """Whether the source has everything that the target has: no column was kept that the source dropped,
        and no type or key that it changed. (A column's name may be an old one, and new columns may be
        missing.)"""
        have = {c.attnum: (c.type, c.key) for c in self.source.columns}
        keys = [{c.attnum for c in one.columns if c.key} for one in (self.source, self.follows)]
        return keys[0] == keys[1] and all(have.get(c.attnum) == (c.type, c.key) for c in self.follows.columns)

    def names(self, now: Relation) -> dict[str, str]:
        """Columns of the source (its layout `now`) that can be compared -> their names in the target before
        mapping, without columns that the target never got."""
        seen = {c.attnum: c for c in self.source.columns}
        names = {c.attnum: c.name for c in self.follows.columns}
        shown = {}
        for c in now.columns:
            known = seen.get(c.attnum)
            if known is None or known.name != c.name:  # no row has used it yet
                shown[c.name] = c.name
            elif c.attnum in names:
                shown[c.name] = names[c.attnum]
        return shown

    def seen(self, now: Relation) -> set[str]:
        """Columns of the source (its layout `now`) whose values are compared, as they are or in what the
        mapping makes of them."""
        names = self.names(now)
        if self.mapping is None:
            return set(names)
        used = {n for p in self.mapping.parts for n in p.needs}
        return {n for n, to in names.items() if to in used}

    @property
    def kept(self) -> list[str]:
        """Columns of the target that it kept when the source dropped what they are made of: they are not
        compared."""
        seen = {c.attnum for c in self.source.columns}
        gone = {c.name for c in self.follows.columns if c.attnum not in seen}
        if self.mapping is None:
            return sorted(gone)
        return [p.column.name for p in self.mapping.parts if gone.intersection(p.needs)]

    def compared(self, now: Relation) -> list[str]:
        """The target's columns that the source's rows (its layout `now`) have everything for: what needs a
        column that is gone, or has another name by now, is missing."""
        there = list(self.names(now).values())
        if self.mapping is None:
            return there
        return [p.column.name for p in self.mapping.parts if set(p.needs) <= set(there)]

    def left(self, now: Relation, df: DataFrame) -> DataFrame:
        """The source's rows (its layout `now`) as the target should have them."""
        df = df.select(*[col(n).alias(to) for n, to in self.names(now).items()])
        if self.mapping is None:
            return df
        wanted = set(self.compared(now))
        parts = tuple(p for p in self.mapping.parts if p.column.name in wanted)
        return rows(df, replace(self.mapping, parts=parts))

    def left_here(self, now: Relation) -> dict[str, pc.Expression]:
        """The same for this process, where `projection` says how, or nothing is mapped: the target's columns,
        and what they are made of."""
        there = {to: pc.field(n) for n, to in self.names(now).items()}
        if (made := self.projection) is None:
            return there
        return {
            n: pc.scalar(made.constants[n]) if n in made.constants else there[made.sources[n]]
            for n in self.compared(now)
        }
