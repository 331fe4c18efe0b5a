"""Columns that validation compares if a target is mapped, or ignores some DDL of its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ..apply.mapping.mapped import rows
from ..apply.mapping.prepare import Prepared, projection_of
from ..model.change import Relation
from ..targets.images import col
from ..targets.projection import Projection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TargetShape:
    """Layouts and mapping of a target.

    Attributes:
        source: the source's layout that the target has reached.
        follows: that layout without ignored DDL.
        mapping: the mapping, if there is one.
    """

    source: Relation
    follows: Relation
    mapping: Prepared | None

    @property
    def relation(self) -> Relation:
        """The target's layout."""
        return self.mapping.relation if self.mapping else self.follows

    @property
    def projection(self) -> Projection | None:
        """The mapping if it needs no Spark, otherwise None."""
        return projection_of([self.mapping]) if self.mapping is not None else None

    @property
    def complete(self) -> bool:
        """Whether the source still has all data of the target.

        False if the target keeps a column that the source dropped, or an older type or key. Column names may
        be older, and new columns may be missing.
        """
        have = {c.attnum: (c.type, c.key) for c in self.source.columns}
        keys = [{c.attnum for c in one.columns if c.key} for one in (self.source, self.follows)]
        return keys[0] == keys[1] and all(have.get(c.attnum) == (c.type, c.key) for c in self.follows.columns)

    def names(self, now: Relation) -> dict[str, str]:
        """Returns the target's names (before mapping) of the source columns that can be compared.

        `now` is the source's current layout. Columns that the target never got are left out.
        """
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
        """Returns the source columns whose values are compared, directly or through the mapping."""
        names = self.names(now)
        if self.mapping is None:
            return set(names)
        used = {n for p in self.mapping.parts for n in p.needs}
        return {n for n, to in names.items() if to in used}

    @property
    def kept(self) -> list[str]:
        """Target columns whose source columns were dropped; they are not compared."""
        seen = {c.attnum for c in self.source.columns}
        gone = {c.name for c in self.follows.columns if c.attnum not in seen}
        if self.mapping is None:
            return sorted(gone)
        return [p.column.name for p in self.mapping.parts if gone.intersection(p.needs)]

    def compared(self, now: Relation) -> list[str]:
        """Returns the target columns that can be computed from the source's rows.

        Left out are columns that need a source column which was dropped or has another name now.
        """
        there = list(self.names(now).values())
        if self.mapping is None:
            return there
        return [p.column.name for p in self.mapping.parts if set(p.needs) <= set(there)]

    def source_frame(self, now: Relation, df: DataFrame) -> DataFrame:
        """Returns the source's rows as the target should have them, in Spark."""
        df = df.select(*[col(n).alias(to) for n, to in self.names(now).items()])
        if self.mapping is None:
            return df
        wanted = set(self.compared(now))
        parts = tuple(p for p in self.mapping.parts if p.column.name in wanted)
        return rows(df, replace(self.mapping, parts=parts))

    def source_expressions(self, now: Relation) -> dict[str, pc.Expression]:
        """Returns the target's columns as expressions over the source's, for a mapping that needs
        no Spark."""
        there = {to: pc.field(n) for n, to in self.names(now).items()}
        if (made := self.projection) is None:
            return there
        return {
            n: pc.scalar(made.constants[n]) if n in made.constants else there[made.sources[n]]
            for n in self.compared(now)
        }
