"""Counts of the rows of tables that were converted or applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation


@dataclass(frozen=True)
class RowCount:
    """Counts rows while they are read: `rows` counted by `what`, observed by `seen`."""

    rows: DataFrame
    what: tuple[Column, ...]
    seen: Observation

    def figures(self) -> dict[str, int]:
        """Returns the counts by name, after the rows have been read."""
        future = self.seen._jo.future()  # type: ignore[union-attr]
        if future.isCompleted():  # otherwise `get` would wait for ever
            return {k: int(v or 0) for k, v in self.seen.get.items()}
        row = self.rows.agg(*self.what).first()
        return {k: int(v or 0) for k, v in row.asDict().items()} if row else {}


def counted(rows: DataFrame, name: str, what: Sequence[Column] = ()) -> tuple[DataFrame, RowCount]:
    """Returns the same rows, counted while they are read: by `what`, otherwise their number as `rows`."""
    from pyspark.sql import Observation

    asked = tuple(what) or (F.count(F.lit(1)).alias("rows"),)
    seen = Observation(name)
    return rows.observe(seen, *asked), RowCount(rows, asked, seen)


@dataclass
class TableReport:
    """Counts of one source table: image rows that were read and kept, bad rows, losses by kind (rows), copies
    of rows that were read."""

    rows: int = 0
    bad: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    again: int = 0


@dataclass
class ConversionReport:
    """Result of a conversion. `tables` is by source table, and by name for tables without changes (lost as a
    whole: `table`); `written` (rows) is by the vendor's table."""

    tables: dict[str, TableReport] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rejects: str | None = None
    pending: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for `--json`."""
        return asdict(self)


def unfit(report: ConversionReport) -> list[str]:
    """Returns notes about tables whose sparse images can no longer be distinguished from full ones."""
    lost = {name: table.lost.get("header column_mask", 0) for name, table in sorted(report.tables.items())}
    said = "{}: the written tables do not show which columns {:,} image{} do{} not have, and have NULL "
    said += "instead: apply the original tables, not these"
    return [said.format(name, n, "s" * (n > 1), "es" * (n == 1)) for name, n in lost.items() if n]


def again(report: ConversionReport) -> list[str]:
    """Returns notes about tables with duplicate rows, e.g. from a file that was delivered twice."""
    said = "{}: {:,} duplicate row{}, equal in every column; each is read once"
    copies = {name: table.again for name, table in sorted(report.tables.items())}
    return [said.format(name, n, "s" * (n > 1)) for name, n in copies.items() if n]


def nothing(report: ConversionReport, path: str) -> list[str]:
    """Returns a note if there were no rows at all."""
    some = any(t.rows or t.bad or t.lost or t.again for t in report.tables.values()) or report.pending
    return [] if some else [f"{path} has no rows: there is nothing to do"]
