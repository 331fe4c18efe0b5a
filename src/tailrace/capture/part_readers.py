"""Reads parts of tables into files or a landing, several at once: threads read the first few rows, as they
start immediately, and processes the others.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ..errors import ValueRangeError
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..model.change import Relation
from ..sources.base import BaselineBatch, BaselinePart, Snapshot
from ..wire.pgvalues import misfit
from .snapshot_sink import DeltaLanding, Landing

FEW_ROWS = 200_000
"""Threads read this many rows, as the catalog counts them. A process takes a second to start."""
PART_ROWS = 2_000
"""A part costs at least as much as this many rows."""

PartReader: TypeAlias = Callable[[Snapshot, Relation, BaselinePart], Iterator[BaselineBatch]]


@dataclass(frozen=True)
class Loaded:
    """Result of one part: its file (None: no rows), the number of rows, and bad values as (column, source
    text)."""

    added: lake.AddedFile | None
    rows: int
    bad: list[tuple[str, str]]


@dataclass(frozen=True)
class PartLoad:
    """Reads a part of a table, and writes it to the landing; called in a thread or another process.

    Values no lake type can hold are NULL there; without `keep_bad` the first raises ValueRangeError, and one
    of the row key in any case.

    Attributes:
        reader, snapshot: how and as of when parts are read; relation: the table.
        to: the landing (a string: a Delta folder).
        hidden: columns that are NULL by their policy.
    """

    reader: PartReader
    snapshot: Snapshot
    relation: Relation
    to: Landing | str
    keep_bad: bool
    hidden: frozenset[str] = frozenset()

    def __call__(self, part: BaselinePart) -> Loaded:
        out = (DeltaLanding(self.to) if isinstance(self.to, str) else self.to).part(self.relation)
        found: list[tuple[str, str]] = []
        key = frozenset(self.relation.key)
        for batch, bad in self.reader(self.snapshot, self.relation, part):
            new = [(one.column, one.text) for one in bad if one.column not in self.hidden]
            found += new
            if refused := [one for one in new if not self.keep_bad or one[0] in key]:
                out.discard()
                raise _refused(self.relation, *refused[0])
            out.write(_without(batch, self.hidden))
        reach("baseline.part")
        return Loaded(out.close(), out.rows, found)


class PartReaders:
    """Reads up to `workers` parts at once, each with a connection of its own, until its block ends."""

    def __init__(self, workers: int) -> None:
        self._workers, self._few = workers, FEW_ROWS
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="parts")
        self._processes: Executor | None = None
        self._open = ExitStack()

    def __enter__(self) -> PartReaders:
        self._open.enter_context(self._threads)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def load(self, load: PartLoad, part: BaselinePart) -> Future[Loaded]:
        """Has a part read."""
        return self._for(part).submit(load, part)

    def _for(self, part: BaselinePart) -> Executor:
        """Who reads a part; processes do once the rows have been more than a few."""
        self._few -= max(part.rows, PART_ROWS)
        if self._few >= 0:
            return self._threads
        if self._processes is None:
            self._threads.shutdown()  # so that there are never more connections than `workers`
            # spawn: a forked child would share the parent's replication connection and Arrow threads
            context = multiprocessing.get_context("spawn")
            made = ProcessPoolExecutor(
                self._workers, mp_context=context, initializer=_end_with, initargs=(os.getpid(),)
            )
            self._processes = self._open.enter_context(made)
        return self._processes


def _end_with(parent: int) -> None:
    """Ends this worker process when its parent is gone, for whatever reason: nothing else would notify it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def why_unfit(relation: Relation, column: str, text: str) -> str:
    """Why a lake type cannot hold a value, given as text."""
    return f"{misfit(relation.table, column, text)} (lake type {relation.column(column).type})"


def _without(batch: pa.RecordBatch, hidden: frozenset[str]) -> pa.RecordBatch:
    """The batch with NULL in hidden columns."""
    if not hidden:
        return batch
    columns = [pa.nulls(batch.num_rows, f.type) if f.name in hidden else batch[f.name] for f in batch.schema]
    return pa.record_batch(columns, schema=batch.schema)


def _refused(relation: Relation, column: str, text: str) -> ValueRangeError:
    else_null = ", or set `on_bad_value: quarantine` to load NULL instead"
    return ValueRangeError(
        f"value {why_unfit(relation, column, text)}",
        where=f"baseline of {relation.table}",
        hint=f'keep the column as text with `types: {{"{relation.table}.{column}": string}}`'
        + ("; a row key cannot be NULL" if column in relation.key else else_null),
    )
