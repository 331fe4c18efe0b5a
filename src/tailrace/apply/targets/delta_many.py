"""Many small batches of many tables in one Spark job: each task takes some tables, one after the other, reads
their changes itself and merges them (`delta_audit`). No job, thread or plan is spent on a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ... import lake
from ...errors import TailraceError, from_spark
from ...machine import cores
from ...sequence import NUMBER_DIGITS, TIME_DIGITS
from ..fold import SEQ
from .delta_audit import Audited, AuditTask, outcome_of
from .delta_local import RESULT, result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSITION, FAILED = "header__position", "failed"
ROWS = 50_000
"""A batch of more changes is a job of its own: then what a job costs does not show."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of a change table, to be read without a JVM.

    Attributes:
        folder: the change table's; files: names in it that may hold the changes.
        columns: name in the batch -> column of the change table.
        after, upto: change numbers in (after, upto]; position: the least stream position (hex).
    """

    folder: str
    files: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    after: int
    upto: int
    position: str = ""

    def batches(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The changes, in the types of a schema that names them."""
        fs, folder = lake.filesystem(self.folder)
        kinds = pa.schema([*wanted, pa.field(POSITION, pa.string())])
        for name in self.files:
            with pq.ParquetFile(f"{folder}/{name}", filesystem=fs, buffer_size=1 << 20) as file:
                yield from self._of(file, kinds, wanted.names)

    def _of(self, file: pq.ParquetFile, kinds: pa.Schema, names: list[str]) -> Iterator[pa.RecordBatch]:
        have = set(file.schema_arrow.names)
        there = [(name, column) for name, column in self.columns if column in have]
        for batch in file.iter_batches(columns=[column for _, column in there], use_threads=False):
            made = {name: batch[column] for name, column in there}
            arrays = [
                _cast(made[f.name], f.type) if f.name in made else pa.nulls(batch.num_rows, f.type)
                for f in kinds
            ]
            yield from self._mine(pa.table(arrays, schema=kinds)).select(names).to_batches()

    def _mine(self, rows: pa.Table) -> pa.Table:
        """The rows of this stretch."""
        number = pc.utf8_slice_codeunits(rows[SEQ], TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS)
        keep = pc.and_(pc.greater(number, f"{self.after:019d}"), pc.less_equal(number, f"{self.upto:019d}"))
        if self.after < 0:
            keep = pc.less_equal(number, f"{self.upto:019d}")
        if self.position:
            keep = pc.and_(keep, pc.greater_equal(rows[POSITION], self.position))
        return rows.filter(keep)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else values.cast(kind)


@dataclass(frozen=True)
class One:
    """A table's batch: where its changes are, and what is done with them."""

    stretch: Stretch
    task: AuditTask


@dataclass(frozen=True)
class ManyTask:
    """The function of tasks whose rows are places in `todo`; gives one row of `RESULT` each, `table` of which
    is the place; `file` says `FAILED` when its changes were not applied, and `told` why."""

    todo: tuple[One, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield self._one(place)

    def _one(self, place: int) -> pa.RecordBatch:
        one = self.todo[place]
        try:
            (done,) = one.task(one.stretch.batches(one.task.wanted))
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables go on
            kind = type(error)
            text = f"{kind.__module__}.{kind.__name__}: {error}"
            return result(table=str(place), file=FAILED, told=text)
        return result(**{**done.to_pylist()[0], "table": str(place)})


def merge_many(spark: SparkSession, todo: Sequence[One]) -> list[Audited | str | TailraceError]:
    """Merges all batches in one job, as many side by side as there are cores.

    Gives what was found of each, in their order: what `delta_audit.merge_audited` gives, or the error of a
    table whose changes were not applied.
    """
    lanes = min(len(todo), max(cores(), spark.sparkContext.defaultParallelism))
    rows = spark.range(0, len(todo), 1, lanes).mapInArrow(ManyTask(tuple(todo)), RESULT).collect()
    found: dict[int, Audited | str | TailraceError] = {}
    for row in rows:
        one = todo[int(row["table"])]
        failed = from_spark(RuntimeError(row["told"]), where=f"apply {one.task.audit.table}")
        found[int(row["table"])] = failed if row["file"] == FAILED else outcome_of(row)
    return [found[place] for place in range(len(todo))]
