"""Change rows of other vendors' tables: read by Spark, those of a question alone, and answered here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..engine.change_arrays import with_reasons
from ..formats.base import ASIDE
from ..formats.base import WHY as BAD
from ..model import sequence
from ..model.change import PREFIX, ChangeTable
from ..model.positions import ChangeNumber
from ..model.quoting import quoted
from ..model.types import arrow_type
from .points import Point

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class SparkChanges:
    """The rows of a canonical change table that a format has read."""

    path: str
    changes: ChangeTable

    @property
    def schema(self) -> pa.Schema:
        """Headers, then data columns."""
        fields = [f for f in self.changes.df.schema if f.name not in ASIDE]
        return pa.schema([(f.name, arrow_type(f.dataType.simpleString())) for f in fields])

    def rows(self, start: Point | None, end: Point | None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows between two places."""
        from pyspark.sql import functions as F

        names = self.schema.names if columns is None else list(columns)
        df = self._good(start, end)
        wanted = pa.schema([self.schema.field(n) for n in names])
        return df.select(*[F.col(quoted(n)) for n in names]).toArrow().cast(wanted)

    @property
    def reached(self) -> ChangeNumber:
        """No number is known without reading; nothing that was there goes."""
        return ChangeNumber(0)

    def refuse_gaps(self, start: Point | None, end: Point | None) -> None:
        """Nothing is known of changes that a vendor's tables lack."""

    def has(self, start: Point, end: Point) -> bool:
        """Whether there are rows between two places."""
        return not self._good(start, end).isEmpty()

    @property
    def rising(self) -> bool:
        """A vendor's numbers may begin anew, and rows come late."""
        return False

    def many(self, upto: Point) -> int:
        """How many rows there are up to a place: a job over all of them."""
        return self._good(None, upto).count()

    def bad(self, start: Point | None, end: Point | None) -> pa.Table | None:
        """Rows that the format calls bad."""
        from pyspark.sql import functions as F

        if BAD not in self.changes.df.columns:
            return None
        # A bad row may have no sequence: then nothing tells that it is outside the range.
        df = self._between(start, end, unplaced=True).where(F.col(BAD).isNotNull())
        found = df.drop(*[c for c in ASIDE if c != BAD]).toArrow()
        return with_reasons(found.drop_columns([BAD]), found[BAD]) if found.num_rows else None

    def _good(self, start: Point | None, end: Point | None) -> DataFrame:
        from pyspark.sql import functions as F

        df = self._between(start, end)
        return df.where(F.col(BAD).isNull()) if BAD in df.columns else df

    def _between(self, start: Point | None, end: Point | None, *, unplaced: bool = False) -> DataFrame:
        df = self.changes.df
        for point, low in ((start, True), (end, False)):
            if point is not None:
                value = _value(point)
                inside = value >= point.low if low else value <= point.high
                df = df.where(inside | value.isNull() if unplaced else inside)
        return df


def _value(point: Point) -> Column:
    from pyspark.sql import functions as F

    if point.column == "number":
        return F.substring(F.col(f"{PREFIX}change_seq"), sequence.TIME_DIGITS + 1, sequence.NUMBER_DIGITS)
    return F.col(PREFIX + point.column)
