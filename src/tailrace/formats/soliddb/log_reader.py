"""Distributes a log's records to tasks: each transaction completely to one task, in order.

Spark shuffles and sorts the records (`ShuffledLog`). A log in Parquet files whose row groups are roughly in
the order of TRXID is read by ranges of it (`RangedLog`), without a shuffle or sort by Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...execution import over_rows
from ...model.quoting import quoted
from ...model.types import spark_type
from ..base import ADDED_COLUMNS, AGAIN, FILE, OWN, RAW, ROW, WHY, Tables
from ..parquet import LoadedTables
from ..row_groups import FILE_INDEX, NUMBER, GroupReader, Range, fits, groups_of, ranges
from ..shape import find_columns
from ..spark_functions import F
from .log import DDL, ROWS, START, SYS_LOG
from .others import WAITS, OtherRecords
from .pairs import Pairs
from .rules import CHANGE, JUDGED_BY, MADE, MARK, MOVES, OFF, OfLog, OfTable
from .transactions import order_of, ordered

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEAST_BYTES = 64 << 20
"""The minimum size of ranges: marks of transactions may be far from their records, so with smaller ranges
they would be read too often."""
SLICE = 1 << 15
_JUDGED, _OFF_TRXID, _OPEN_TRXID, _WHOLE = (OWN + name for name in ("judged", "off", "open", "whole"))
_STAY = {"RECID", "TRXID", "STMTTRXID", "RELID", "FLAGS", "LOGADDR", CHANGE, OFF, MADE, MARK, MOVES, WHY}
"""The columns of records of which only the position is needed."""


class LogReader(Protocol):
    """A log that distributes its records to tasks."""

    @property
    def length(self) -> int:
        """The number of bytes of a LOGADDR."""

    def changes(self, rule: OfTable, work: Pairs) -> DataFrame:
        """Returns a table's changes, with `FILE` and `ROW`."""

    def others(self, rule: OfLog, work: OtherRecords) -> tuple[DataFrame, DataFrame]:
        """Returns the records that are no changes, with `FILE`, `ROW`, and (bad ones) `RAW`; and those that
        wait."""


@dataclass(frozen=True)
class ShuffledLog:
    """A log that Spark reads and shuffles (`transactions.ordered`).

    Attributes:
        rows: its conformed rows.
        length: bytes of a LOGADDR.
    """

    rows: DataFrame
    length: int

    def changes(self, rule: OfTable, work: Pairs) -> DataFrame:
        """A table's changes."""
        # Rows of other tables are not shuffled; `rule` decides on the rest.
        own = F.col("RELID").isin(*{x.relid for x in rule.mine}) | ~F.col("RECID").isin(*ROWS)
        rows = ordered(_judged(self.rows.filter(own).drop(RAW), rule))
        return over_rows(rows, work, work.schema(_kinds(rows)))

    def others(self, rule: OfLog, work: OtherRecords) -> tuple[DataFrame, DataFrame]:
        """The records that are no changes, and those that wait."""
        log = _judged(self.rows, rule)
        log = log.withColumn(RAW, F.when(F.col(WHY).isNotNull(), F.col(RAW)))
        whole = None
        if work.capture_off != "keep":
            starts = _judged(self.rows.filter(F.col("RECID") == START), rule)
            whole = starts.filter(OFF).select(F.col("TRXID").alias(_OFF_TRXID)).distinct()
        records = _others(_light(log, whole), work)
        return records.filter(~F.col(WAITS)), _waiting(log.filter(F.col(WHY).isNull()), work)


def _judged(log: DataFrame, rule: OfTable | OfLog) -> DataFrame:
    """Returns the records that a rule selects, with its additional columns. Only the columns it needs go to
    Python, and DATA only of DDL records."""
    data = F.when(F.col("RECID") == DDL, F.col("DATA")).when(F.col("DATA").isNotNull(), F.lit(b""))
    asked: dict[str, Column] = {c: F.col(c) for c in JUDGED_BY} | {"DATA": data}
    names, kinds = list(asked), rule.added()

    def judge(*columns: pa.Array) -> pa.Array:
        taken, result = rule.judged(pa.RecordBatch.from_arrays(list(columns), names=names))
        return pa.StructArray.from_arrays([taken, *result.values()], ["taken", *result])

    types = ", ".join(f"{quoted(n)}: {spark_type(kind)}" for n, kind in kinds.items())
    # Marked as not deterministic: otherwise Spark would evaluate it once for each of its columns.
    udf = F.arrow_udf(judge, f"struct<taken: boolean, {types}>").asNondeterministic()  # type: ignore[attr-defined]
    rows = log.select("*", udf(*asked.values()).alias(_JUDGED)).filter(F.col(_JUDGED)["taken"])
    kept = [F.col(quoted(c)) for c in log.columns if c not in kinds]
    return rows.select(*kept, *(F.col(_JUDGED)[n].alias(n) for n in kinds))


def _kinds(df: DataFrame) -> Mapping[str, str]:
    return {field.name: field.dataType.simpleString() for field in df.schema}


def _others(log: DataFrame, work: OtherRecords) -> DataFrame:
    rows = ordered(log, statements=work.by_statement)
    return over_rows(rows, work, work.schema(_kinds(rows)))


def _light(log: DataFrame, whole: DataFrame | None = None) -> DataFrame:
    """Returns records, changes only with their position, except those of the transactions `whole`: only
    positions are compared, and the shuffle should be cheap."""
    light, names = F.col(CHANGE), log.columns
    if whole is not None:
        whole = F.broadcast(whole.withColumn(_WHOLE, F.lit(True)))
        log = log.join(whole, F.col("TRXID").eqNullSafe(F.col(_OFF_TRXID)), "left")
        light &= F.col(_WHOLE).isNull()
    kept = {c: F.col(c) if c in _STAY else F.when(~light, F.col(quoted(c))).alias(c) for c in names}
    return log.select(*kept.values())


def _waiting(good: DataFrame, work: OtherRecords) -> DataFrame:
    """Returns the good records of open transactions. Their positions are enough to find them; then all
    records of these transactions, usually none, are read completely."""
    found = _others(_light(good), work).filter(WAITS)
    mine = F.broadcast(found.select(F.col("TRXID").alias(_OPEN_TRXID)).distinct())
    some = good.join(mine, F.col("TRXID").eqNullSafe(F.col(_OPEN_TRXID)), "left_semi")
    return _others(some, work).filter(WAITS)


@dataclass(frozen=True)
class RangedLog:
    """A log whose row groups are roughly in the order of TRXID.

    Attributes:
        spark: the session.
        log: reads its row groups.
        ranges: the ranges, one per task.
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
        rows = self._rows(OthersByRange(self.log, self.ranges, rule, work))
        came = [F.col(name).alias(have) for name, have, _ in self.log.columns if have is not None]
        bad = F.col(WHY).isNotNull() & (F.col(WHY) != AGAIN)
        rows = rows.withColumn(RAW, F.when(bad, F.to_json(F.struct(*came))))
        return rows.filter(~F.col(WAITS)), rows.filter(WAITS)

    def _rows(self, task: ChangesByRange | OthersByRange) -> DataFrame:
        kinds = {f.name: spark_type(f.type) for f in _records(task.log, task.rule, None)[0].schema}
        many = len(self.ranges)
        rows = over_rows(self.spark.range(0, many, 1, many), task, task.work.schema(kinds))
        place, number = (F.col(quoted(name)) for name in (FILE_INDEX, NUMBER))
        return rows.withColumns({FILE: self.log.path(place), ROW: number}).drop(FILE_INDEX, NUMBER)


def in_ranges(tables: Tables, logs: Sequence[str], length: int) -> RangedLog | None:
    """Returns the log among the vendor's tables; None if Spark has to shuffle its records.

    Args:
        tables: the vendor's tables.
        logs: the names of the logs among them.
        length: bytes of a LOGADDR.
    """
    files = tables.files_of(logs[0]) if isinstance(tables, LoadedTables) and len(logs) == 1 else None
    if not files:
        return None
    have = [c for c in tables[logs[0]].columns if c not in ADDED_COLUMNS]
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
    return RangedLog(tables[logs[0]].sparkSession, log, plan, length)


@dataclass(frozen=True)
class ChangesByRange:
    """Reads a table's changes, range by range.

    Attributes:
        log: reads the log's row groups.
        ranges: the ranges of TRXIDs.
        rule: selects the table's records.
        work: converts them to changes.
    """

    log: GroupReader
    ranges: tuple[Range, ...]
    rule: OfTable
    work: Pairs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the changes of the ranges whose numbers are given."""
        for one in _requested(self.ranges, batches):
            yield from self.work(_in_order(_records(self.log, self.rule, one)))


@dataclass(frozen=True)
class OthersByRange:
    """Reads the records that are no changes, and those that wait, range by range.

    Attributes:
        log: reads the log's row groups.
        ranges: the ranges of TRXIDs.
        rule: classifies records.
        work: selects those that are kept.
    """

    log: GroupReader
    ranges: tuple[Range, ...]
    rule: OfLog
    work: OtherRecords

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the records of the ranges whose numbers are given."""
        for one in _requested(self.ranges, batches):
            parts = _records(self.log, self.rule, one)
            bad = [p.filter(p[WHY].is_valid()) for p in parts if p[WHY].null_count < p.num_rows]
            good = [p.filter(p[WHY].is_null()) if p[WHY].null_count < p.num_rows else p for p in parts]
            yield from self.work(iter(bad))
            yield from self._good(good)

    def _good(self, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the good records of a range: first without their values; then those of open transactions,
        usually none, again and completely."""
        opened: list[pa.Array] = []
        for result in self.work(_in_order(self._light(parts), statements=self.work.by_statement)):
            waits = result[WAITS]
            opened.append(result["TRXID"].filter(waits))
            yield result.filter(pc.invert(waits))
        waiting = pa.concat_arrays([pa.array([], pa.int64()), *opened]).unique()
        if len(waiting):
            some = [p.filter(pc.is_in(p["TRXID"], value_set=waiting)) for p in parts]
            for result in self.work(_in_order(some, statements=self.work.by_statement)):
                yield result.filter(result[WAITS])

    def _light(self, parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Returns records, changes only with their position, except those of transactions with
        CAPTURE_OFF."""
        off = pa.array([], pa.int64())
        if self.work.capture_off != "keep":
            off = pa.concat_arrays([off, *(p["TRXID"].filter(p[OFF]) for p in parts)]).unique()
        result = []
        for part in parts:
            light = part[CHANGE]
            if len(off):
                light = pc.and_not(light, pc.is_in(part["TRXID"], value_set=off))
            arrays = [part[n] if n in _STAY else pc.if_else(light, None, part[n]) for n in part.schema.names]
            result.append(pa.RecordBatch.from_arrays(arrays, names=part.schema.names))
        return result


def _requested(ranges: Sequence[Range], batches: Iterator[pa.RecordBatch]) -> Iterator[Range]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield ranges[number]


def _records(log: GroupReader, rule: OfTable | OfLog, one: Range | None) -> list[pa.RecordBatch]:
    """Returns the records of a range that a rule selects: an empty batch first, then row group by row
    group."""
    tables = [log.schema().empty_table(), *(log.read(one.groups[0], one.low, one.high) if one else ())]
    result: list[pa.RecordBatch] = []
    for table in tables:
        for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]:
            result.append(rule(batch.append_column(WHY, pa.nulls(batch.num_rows, pa.string()))))
    return result


def _in_order(parts: Sequence[pa.RecordBatch], *, statements: bool = True) -> Iterator[pa.RecordBatch]:
    """Yields good records in their order, in batches."""
    rows = pa.Table.from_batches(parts).combine_chunks()
    names = ["TRXID", "RECID", "LOGADDR", *(n for n in rows.column_names if n.startswith("_"))]
    (keys,) = rows.select([*names, "RELID", "STMTTRXID"]).to_batches() or [parts[0]]
    order = order_of(keys, statements=statements)
    for start in range(0, len(order), SLICE):
        yield from rows.take(pa.array(order[start : start + SLICE])).combine_chunks().to_batches()
