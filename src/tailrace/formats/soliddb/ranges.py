"""The records of one range of TRXIDs after the other, read from row groups, sorted and worked on in Arrow.

Nothing is shuffled or sorted by Spark. `row_groups` tells when logs are read so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from .. import arrow_functions
from ..arrow_functions import ArrowRows
from ..base import WHY
from ..row_groups import GroupReader, Range
from .log import CAPTURE_OFF, START
from .order import order_of
from .others import CHANGE, WAITS, OtherRecords
from .pairs import Pairs
from .rules import OfLog, OfTable
from .spread import light

SLICE = 1 << 15


@dataclass(frozen=True)
class ChangesByRange:
    """A table's changes, range by range.

    Attributes:
        log: reads the log's row groups.
        ranges: the ranges of TRXIDs.
        rule: what the table's records are.
        work: makes changes of them.
    """

    log: GroupReader
    ranges: tuple[Range, ...]
    rule: OfTable
    work: Pairs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The changes of the ranges whose numbers come."""
        for one in _asked(self.ranges, batches):
            yield from self.work(_in_order(_ruled(self.log, self.rule, one)))


@dataclass(frozen=True)
class OthersByRange:
    """The records that are no changes, and those that wait, range by range.

    Attributes:
        log: reads the log's row groups.
        ranges: the ranges of TRXIDs.
        rule: what records are.
        work: tells which ones are kept.
    """

    log: GroupReader
    ranges: tuple[Range, ...]
    rule: OfLog
    work: OtherRecords

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records of the ranges whose numbers come."""
        for one in _asked(self.ranges, batches):
            parts = _ruled(self.log, self.rule, one)
            bad = [p.filter(p[WHY].is_valid()) for p in parts if p[WHY].null_count < p.num_rows]
            good = [p.filter(p[WHY].is_null()) if p[WHY].null_count < p.num_rows else p for p in parts]
            yield from self.work(iter(bad))
            yield from self._good(good)

    def _good(self, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The good records of a range: looked at without what is in them; then those of transactions that are
        not over, mostly none, once more."""
        opened: list[pa.Array] = []
        for made in self.work(_in_order(self._light(parts), statements=self.work.by_statement)):
            waits = made[WAITS]
            opened.append(made["TRXID"].filter(waits))
            yield made.filter(pc.invert(waits))
        waiting = pa.concat_arrays([pa.array([], pa.int64()), *opened]).unique()
        if len(waiting):
            some = [p.filter(pc.is_in(p["TRXID"], value_set=waiting)) for p in parts]
            for made in self.work(_in_order(some, statements=self.work.by_statement)):
                yield made.filter(made[WAITS])

    def _light(self, parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Changes only with what tells their place, but for those of transactions with CAPTURE_OFF."""
        f = arrow_functions
        condition = f.col(CHANGE)
        if self.work.capture_off != "keep":
            off = (f.col("RECID") == START) & (f.col("FLAGS").bitwiseAND(CAPTURE_OFF) != 0)
            found = [ArrowRows(p).filter(off).batch["TRXID"] for p in parts]
            condition = condition & ~f.col("TRXID").isin(*pa.concat_arrays(found).unique().to_pylist())
        return [light(f, ArrowRows(p), condition).batch for p in parts]


def schema_of(log: GroupReader, rule: OfTable | OfLog) -> pa.Schema:
    """The schema of the records that are worked on."""
    return _ruled(log, rule, None)[0].schema


def _asked(ranges: Sequence[Range], batches: Iterator[pa.RecordBatch]) -> Iterator[Range]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield ranges[number]


def _ruled(log: GroupReader, rule: OfTable | OfLog, one: Range | None) -> list[pa.RecordBatch]:
    """The records of a range that a rule gives: none first, then row group by row group."""
    tables = [log.schema().empty_table(), *(log.read(one.groups[0], one.low, one.high) if one else ())]
    made: list[pa.RecordBatch] = []
    for table in tables:
        for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]:
            rows = ArrowRows(batch.append_column(WHY, pa.nulls(batch.num_rows, pa.string())))
            made.append(rule(arrow_functions, rows).batch)
    return made


def _in_order(parts: Sequence[pa.RecordBatch], *, statements: bool = True) -> Iterator[pa.RecordBatch]:
    """Good records in their order, some at a time."""
    rows = pa.Table.from_batches(parts).combine_chunks()
    names = ["TRXID", "RECID", "LOGADDR", *(n for n in rows.column_names if n.startswith("_"))]
    (keys,) = rows.select([*names, "RELID", "STMTTRXID"]).to_batches() or [parts[0]]
    order = order_of(keys, statements=statements)
    for start in range(0, len(order), SLICE):
        yield from rows.take(pa.array(order[start : start + SLICE])).combine_chunks().to_batches()
