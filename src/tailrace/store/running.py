"""Runs the tasks of a store batch: each reads its partition of LOG itself, so no record passes through the
JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..execution import Job, executor_of, map_tasks, slots
from ..lake import delta as lake
from ..lake import log
from .log_files import LogFile
from .task import LOG_COLUMNS, StorePlan, StoreResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[[StorePlan], Sequence[StoreResult]]
"""Stores the records of a batch according to a plan."""
PARTITION_BYTES = 2 << 20
"""The approximate minimum number of bytes of LOG (compressed) in a partition."""
PARTITIONS_PER_SLOT = 2
"""The maximum number of partitions for each slot."""
SPLIT_BYTES = 8 << 20
"""Larger files (bytes) are divided among tasks, by row groups."""
BATCH_BYTES = 16 << 20
"""The approximate number of bytes of LOG, uncompressed, that are decoded at once."""
BATCH_ROWS = 1 << 17
_CHANGES = pa.array([log.INSERT, log.UPDATE, log.DELETE, log.DDL])


@dataclass(frozen=True)
class Piece:
    """A file of LOG, or some of its row groups (None: all)."""

    path: str
    size: int
    groups: tuple[int, ...] | None = None


def runner(log_path: str, files: Sequence[LogFile], session: SparkSession | None = None) -> Run:
    """Returns a function that runs a batch's tasks; a small batch is one task of the driver."""

    def run(plan: StorePlan) -> Sequence[StoreResult]:
        records = sum(f.records for f in files)
        job = Job("store", f"store {records:,} log records", records)
        if executor_of(session, records) is not None:
            job = _job(log_path, files)
        size, parallelism = sum(f.size for f in files), slots(executor_of(session, job.changes))
        many = 1 if size <= SPLIT_BYTES else min(PARTITIONS_PER_SLOT * parallelism, size // PARTITION_BYTES)
        return run_partitions(log_path, partitions(log_path, files, many), job, session)(plan)

    return run


def _job(log_path: str, files: Sequence[LogFile]) -> Job:
    """Returns the step, with the number of changes and tables in files of LOG."""
    fs, folder = lake.filesystem(log_path)
    names = [f"{folder}/{file.path}" for file in files]
    found = pa.concat_tables(pq.read_table(name, columns=["RECID", "RELID"], filesystem=fs) for name in names)
    changes = found.filter(pc.is_in(found["RECID"], _CHANGES.cast(found["RECID"].type)))
    tables = len(pc.unique(changes["RELID"]))
    what = f"{tables} tables" if tables != 1 else "1 table"
    return Job("store", f"store {changes.num_rows:,} changes of {what}", changes.num_rows)


def run_partitions(
    log_path: str, inputs: Sequence[tuple[Piece, ...]], job: Job, session: SparkSession | None = None
) -> Run:
    """Returns a function that runs a task for each partition."""

    def run(plan: StorePlan) -> list[StoreResult]:
        found = map_tasks(partial(_store, log_path, plan), inputs, session=session, job=job)
        return [each for one in found for each in one]

    return run


def _store(log_path: str, plan: StorePlan, partition: Sequence[Piece]) -> list[StoreResult]:
    return plan(records(log_path, partition))


def partitions(log: str, files: Sequence[LogFile], many: int) -> list[tuple[Piece, ...]]:
    """Divides files, in order, into at most `many` partitions of about the same size; none is empty.

    >>> [[p.path for p in one] for one in partitions("log", [LogFile(n, 10) for n in "abcd"], 2)]
    [['a', 'b'], ['c', 'd']]
    >>> [[p.path for p in one] for one in partitions("log", [LogFile("a", 100), LogFile("b", 1)], 2)]
    [['a'], ['b']]
    """
    total, assigned = sum(f.size for f in files), 0
    found: list[list[Piece]] = [[] for _ in range(many)]
    for file in files:
        for piece in _pieces(log, file, total // many):
            found[min(many - 1, (assigned + piece.size // 2) * many // max(total, 1))].append(piece)
            assigned += piece.size
    return [tuple(one) for one in found if one]


def _pieces(log: str, file: LogFile, partition_bytes: int) -> list[Piece]:
    if file.size <= max(partition_bytes, SPLIT_BYTES):
        return [Piece(file.path, file.size)]
    with _open(log, file.path) as parquet:
        footer = parquet.metadata
        rows = [footer.row_group(g).num_rows for g in range(footer.num_row_groups)]
    sizes = [file.size * one // max(sum(rows), 1) for one in rows]
    return [Piece(file.path, size, (g,)) for g, size in enumerate(sizes)]


def records(log: str, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
    """Yields the log records of files, in order, in batches of about `BATCH_BYTES`."""
    for piece in pieces:
        with _open(log, piece.path) as parquet:
            footer = parquet.metadata
            groups = list(range(footer.num_row_groups)) if piece.groups is None else list(piece.groups)
            size = sum(footer.row_group(g).total_byte_size for g in groups)
            rows = sum(footer.row_group(g).num_rows for g in groups)
            at_once = max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(size, 1)))
            yield from parquet.iter_batches(at_once, row_groups=groups, columns=LOG_COLUMNS)


def _open(log: str, path: str) -> pq.ParquetFile:
    fs, folder = lake.filesystem(log)
    return pq.ParquetFile(fs.open_input_file(f"{folder}/{path}"))
