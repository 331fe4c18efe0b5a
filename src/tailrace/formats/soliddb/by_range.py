"""A log that is read by ranges of TRXID (`ranges`), as Spark's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from ...execution import over_rows
from ...model.quoting import quoted
from ...model.types import spark_type
from ..base import AGAIN, ASIDE, FILE, RAW, ROW, WHY, Tables
from ..parquet import LoadedTables
from ..row_groups import NUMBER, PLACE, GroupReader, Range, fits, groups_of, ranges
from ..shape import find_columns
from .log import SYS_LOG
from .others import WAITS, OtherRecords
from .pairs import Pairs
from .ranges import ChangesByRange, OthersByRange, schema_of
from .rules import OfLog, OfTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEAST_BYTES = 64 << 20
"""Marks of transactions may lie apart from their records: in smaller ranges they would be read too often."""


@dataclass(frozen=True)
class InRanges:
    """A log whose row groups lie in about the order of TRXID.

    Attributes:
        spark: the session.
        log: reads its row groups.
        ranges: the ranges, each for a task.
        length: bytes of a LOGADDR.
    """

    spark: SparkSession
    log: GroupReader
    ranges: tuple[Range, ...]
    length: int

    def changes(self, rule: OfTable, work: Pairs) -> DataFrame:
        """A table's changes."""
        return self._rows(ChangesByRange(self.log, self.ranges, rule, work))

    def others(self, rule: OfLog, work: OtherRecords) -> tuple[DataFrame, DataFrame]:
        """The records that are no changes, and those that wait."""
        from pyspark.sql import functions as F

        rows = self._rows(OthersByRange(self.log, self.ranges, rule, work))
        came = [F.col(name).alias(have) for name, have, _ in self.log.columns if have is not None]
        bad = F.col(WHY).isNotNull() & (F.col(WHY) != AGAIN)
        rows = rows.withColumn(RAW, F.when(bad, F.to_json(F.struct(*came))))
        return rows.filter(~F.col(WAITS)), rows.filter(WAITS)

    def _rows(self, task: ChangesByRange | OthersByRange) -> DataFrame:
        from pyspark.sql import functions as F

        kinds = {field.name: spark_type(field.type) for field in schema_of(task.log, task.rule)}
        many = len(self.ranges)
        rows = over_rows(self.spark.range(0, many, 1, many), task, task.work.schema(kinds))
        place, number = (F.col(quoted(name)) for name in (PLACE, NUMBER))
        return rows.withColumns({FILE: self.log.path(place), ROW: number}).drop(PLACE, NUMBER)


def in_ranges(tables: Tables, logs: Sequence[str], length: int) -> InRanges | None:
    """The log among the vendor's tables; None if it takes Spark to bring its records together.

    Args:
        tables: the vendor's tables.
        logs: the names of those that are logs.
        length: bytes of a LOGADDR.
    """
    files = tables.files_of(logs[0]) if isinstance(tables, LoadedTables) and len(logs) == 1 else None
    if not files:
        return None
    have = [c for c in tables[logs[0]].columns if c not in ASIDE]
    found = find_columns(have, SYS_LOG, where=logs[0])
    columns = tuple((c.name, found.get(c.name), c.type) for c in SYS_LOG.columns)
    if "TRXID" not in found or len(found) < len(have):
        return None
    groups = []
    for at, file in enumerate(files):
        with pq.ParquetFile(file) as parquet:
            mine = groups_of(at, parquet.metadata, found["TRXID"]) if fits(parquet, columns) else None
        if mine is None:
            return None
        groups += mine
    plan = ranges([groups], least=LEAST_BYTES)
    if plan is None:
        return None
    log = GroupReader(tuple(str(f.absolute()) for f in files), columns, "TRXID")
    return InRanges(tables[logs[0]].sparkSession, log, plan, length)
