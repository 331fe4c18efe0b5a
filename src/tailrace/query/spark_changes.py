"""Reads change rows of other vendors' tables with Spark, restricted to a query's range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..engine.change_arrays import with_reasons
from ..formats.base import ADDED_COLUMNS
from ..formats.base import WHY as BAD
from ..model import sequence
from ..model.change import PREFIX, ChangeTable
from ..model.positions import ChangeNumber
from ..model.quoting import quoted
from ..model.types import arrow_type
from .positions import PositionRange

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
        fields = [f for f in self.changes.df.schema if f.name not in ADDED_COLUMNS]
        return pa.schema([(f.name, arrow_type(f.dataType.simpleString())) for f in fields])

    def rows(
        self, start: PositionRange | None, end: PositionRange | None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Returns the rows between two positions."""
        from pyspark.sql import functions as F

        names = self.schema.names if columns is None else list(columns)
        df = self._good(start, end)
        wanted = pa.schema([self.schema.field(n) for n in names])
        return df.select(*[F.col(quoted(n)) for n in names]).toArrow().cast(wanted)

    @property
    def max_number(self) -> ChangeNumber:
        """0: unknown without reading the rows."""
        return ChangeNumber(0)

    def refuse_gaps(self, start: PositionRange | None, end: PositionRange | None) -> None:
        """Does nothing: gaps of a vendor's tables are not known."""

    def has(self, start: PositionRange, end: PositionRange) -> bool:
        """Returns whether there are rows between two positions."""
        return not self._good(start, end).isEmpty()

    @property
    def monotonic(self) -> bool:
        """False: a vendor's numbers may restart, and rows may arrive late."""
        return False

    def count_until(self, upto: PositionRange) -> int:
        """Returns the number of rows up to a position, by a job over all rows."""
        return self._good(None, upto).count()

    def rejects(self, start: PositionRange | None, end: PositionRange | None) -> pa.Table | None:
        """Returns the rows that the format rejects."""
        from pyspark.sql import functions as F

        if BAD not in self.changes.df.columns:
            return None
        # A rejected row without a sequence may be in the range.
        df = self._between(start, end, unplaced=True).where(F.col(BAD).isNotNull())
        found = df.drop(*[c for c in ADDED_COLUMNS if c != BAD]).toArrow()
        return with_reasons(found.drop_columns([BAD]), found[BAD]) if found.num_rows else None

    def _good(self, start: PositionRange | None, end: PositionRange | None) -> DataFrame:
        from pyspark.sql import functions as F

        df = self._between(start, end)
        return df.where(F.col(BAD).isNull()) if BAD in df.columns else df

    def _between(
        self, start: PositionRange | None, end: PositionRange | None, *, unplaced: bool = False
    ) -> DataFrame:
        df = self.changes.df
        for point, low in ((start, True), (end, False)):
            if point is not None:
                value = _value(point)
                inside = value >= point.low if low else value <= point.high
                df = df.where(inside | value.isNull() if unplaced else inside)
        return df


def _value(point: PositionRange) -> Column:
    from pyspark.sql import functions as F

    if point.column == "number":
        return F.substring(F.col(f"{PREFIX}change_seq"), sequence.TIME_DIGITS + 1, sequence.NUMBER_DIGITS)
    return F.col(PREFIX + point.column)
