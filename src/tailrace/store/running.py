"""Runs the tasks of a store batch: as threads of this process on one machine, as Spark's tasks on a cluster.

Both share LOG's files out by name and call the same `StorePlan`; no record passes the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..config.spread import cluster, side_by_side, spread
from ..lake import delta as lake
from .log_files import LogFile
from .task import LOG_COLUMNS, RESULT, StorePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[[StorePlan], Sequence[Mapping[str, Any]]]
"""Does what a plan says with the records of a batch; gives the rows of `task.RESULT`."""
HERE_BYTES = 16 << 20
"""So much of LOG, which is compressed, a cluster's driver stores by itself: a Spark job would cost more."""
SPLIT_BYTES = 8 << 20
"""Files of more bytes are shared by tasks, by row groups."""
BATCH_BYTES = 16 << 20
"""About so much of LOG, uncompressed, is decoded at once."""
BATCH_ROWS = 1 << 17


@dataclass(frozen=True)
class Piece:
    """A file of LOG, or some of its row groups."""

    path: str
    size: int
    groups: tuple[int, ...] | None = None


def runner(log: str, files: Sequence[LogFile], spark: SparkSession | None = None) -> Run:
    """Runs a batch's tasks: Spark's when its session is a cluster's and there is more than a little to store,
    otherwise this process's; a small batch is one task."""
    size = sum(f.size for f in files)
    there = cluster(spark) if size > HERE_BYTES else None
    return shared(log, shares(log, files, side_by_side(there) if size > SPLIT_BYTES else 1), there)


def shared(log: str, mine: Sequence[tuple[Piece, ...]], spark: SparkSession | None = None) -> Run:
    """Runs a task for each share: Spark's, or without a session threads."""
    return lambda plan: spread(ShareTask(log, tuple(mine), plan), len(mine), RESULT, spark)


@dataclass(frozen=True)
class ShareTask:
    """Stores the shares of a batch that the task's numbers name."""

    log: str
    shares: tuple[tuple[Piece, ...], ...]
    plan: StorePlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.plan(records(self.log, self.shares[number]))


def shares(log: str, files: Sequence[LogFile], many: int) -> list[tuple[Piece, ...]]:
    """Files in order as at most so many shares of about the same size; none is empty.

    >>> [[p.path for p in one] for one in shares("log", [LogFile(n, 10) for n in "abcd"], 2)]
    [['a', 'b'], ['c', 'd']]
    >>> [[p.path for p in one] for one in shares("log", [LogFile("a", 100), LogFile("b", 1)], 2)]
    [['a'], ['b']]
    """
    total, made = sum(f.size for f in files), 0
    found: list[list[Piece]] = [[] for _ in range(many)]
    for file in files:
        for piece in _pieces(log, file, total // many):
            found[min(many - 1, (made + piece.size // 2) * many // max(total, 1))].append(piece)
            made += piece.size
    return [tuple(one) for one in found if one]


def _pieces(log: str, file: LogFile, share: int) -> list[Piece]:
    if file.size <= max(share, SPLIT_BYTES):
        return [Piece(file.path, file.size)]
    with _open(log, file.path) as parquet:
        footer = parquet.metadata
        rows = [footer.row_group(g).num_rows for g in range(footer.num_row_groups)]
    sizes = [file.size * one // max(sum(rows), 1) for one in rows]
    return [Piece(file.path, size, (g,)) for g, size in enumerate(sizes)]


def records(log: str, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
    """The log records of files, in order, in batches of about `BATCH_BYTES`."""
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
