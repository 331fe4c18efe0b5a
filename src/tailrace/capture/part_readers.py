"""Reads parts of tables into files or a landing, in parallel.

Spark's tasks read them if there is a session. While it starts, threads read the first few rows, as threads
start immediately; they also read small jobs. Without a session, processes read more than a few rows.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from ..config.machine import DRIVER_LIMIT
from ..errors import TailraceError, ValueRangeError
from ..execution import BackgroundSession, Job, background, map_tasks
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..lake.storage import register_all, registered
from ..model.change import Relation
from ..sources.base import BaselineBatch, BaselinePart, Snapshot
from ..wire.pgvalues import misfit
from .snapshot_sink import DeltaLanding, Landing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW_ROWS = 200_000
"""The number of rows that threads read, by the catalog's count. A process takes a second to start."""
PART_ROWS = 2_000
"""The minimum cost of a part, in rows."""
LIGHT_ROWS = 20_000
"""Parts with fewer rows on average share Spark's tasks."""
WAIT_S = 15.0
"""Seconds for which more than a few rows wait for a session that is starting."""
TOGETHER_S = 0.1
"""Parts that arrive within this many seconds of each other are read by one job."""

PartReader: TypeAlias = Callable[[Snapshot, Relation, BaselinePart], Iterator[BaselineBatch]]


@dataclass(frozen=True)
class Loaded:
    """The result of one part: its file (None: no rows), the number of rows, and rejected values as (column,
    source text)."""

    added: lake.AddedFile | None
    rows: int
    bad: list[tuple[str, str]]


@dataclass(frozen=True)
class PartLoad:
    """Reads parts of a table, and writes them to the landing, in a thread or another process.

    Values that no lake type can hold become NULL. Without `keep_bad`, or in the row key, the first one raises
    ValueRangeError.

    Attributes:
        reader: reads a part.
        snapshot: the snapshot that it reads.
        relation: the table.
        to: the landing (a string: a Delta folder).
        keep_bad: see above.
        hidden: columns that are NULL by their policy.
    """

    reader: PartReader
    snapshot: Snapshot
    relation: Relation
    to: Landing | str
    keep_bad: bool
    hidden: frozenset[str] = frozenset()

    def __call__(self, part: BaselinePart) -> Loaded:
        to = DeltaLanding(self.to) if isinstance(self.to, str) else self.to
        out = to.part(self.relation, f"{part.leaf} {part.first}")
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


@dataclass(frozen=True)
class RequestedPart:
    """A part to read, with its table; picklable."""

    load: PartLoad
    part: BaselinePart


def try_read(asked: RequestedPart) -> Loaded | TailraceError:
    """Returns the result of a part, or its error: an error ends only the reading of its table."""
    try:
        return asked.load(asked.part)
    except TailraceError as error:
        return error


def reading_job(kind: str, asked: Sequence[RequestedPart]) -> Job:
    """Returns the job that reads parts.

    >>> one = Relation(1, "shop", "a", "d")
    >>> load = PartLoad(None, None, one, "", False)
    >>> parts = [RequestedPart(load, BaselinePart("a", n, None, 600)) for n in (0, 9)]
    >>> reading_job("baseline", parts).text
    'baseline shop.a: 1,200 rows, 2 parts'
    """
    tables, rows = {one.load.relation.table for one in asked}, sum(one.part.rows for one in asked)
    what = f"{kind} {min(tables)}" if len(tables) == 1 else f"{kind} of {len(tables)} tables"
    parts = "1 part" if len(asked) == 1 else f"{len(asked):,} parts"
    return Job(kind, f"{what}: {rows:,} rows, {parts}", rows)


def part_weights(asked: Sequence[RequestedPart]) -> list[int] | None:
    """Returns the weights of small parts, which share tasks; None if each part gets a task."""
    sizes = [max(one.part.rows, PART_ROWS) for one in asked]
    return sizes if sum(sizes) < LIGHT_ROWS * len(sizes) else None


class SparkReader(Protocol):
    """Reads parts by Spark's tasks.

    Attributes:
        limit: the minimum number of rows of a job.
    """

    limit: int

    @property
    def state(self) -> str:
        """The session's state (`BackgroundSession.state`)."""

    def read(
        self, asked: Sequence[RequestedPart], done: Callable[[int, Loaded | TailraceError], None]
    ) -> None:
        """Reads parts, and calls `done` with the result of each.

        Parts without a result could not be read by Spark, and are no longer being read.
        """


class SessionReader:
    """Reads parts by Spark's tasks of a session of this process."""

    def __init__(self, session: SparkSession | BackgroundSession, workers: int, kind: str) -> None:
        self._late = background(session)
        self._session = session.as_session if isinstance(session, BackgroundSession) else session
        self._workers, self._kind = workers, kind
        self.limit = self._late.driver_limit if self._late else DRIVER_LIMIT

    @property
    def state(self) -> str:
        """The session's state."""
        return self._late.state if self._late else "ready"

    def read(
        self, asked: Sequence[RequestedPart], done: Callable[[int, Loaded | TailraceError], None]
    ) -> None:
        """Reads parts in one job."""
        job, weights = reading_job(self._kind, asked), part_weights(asked)
        found = map_tasks(
            try_read, asked, session=self._session, job=job, weights=weights, at_once=self._workers
        )
        for at, one in enumerate(found):
            done(at, one)


@dataclass(eq=False)
class _PendingPart:
    """A part that waits for its reader."""

    asked: RequestedPart
    future: Future[Loaded] = field(default_factory=Future)

    def done(self, result: Loaded | BaseException) -> None:
        """Sets the result of a future that is running."""
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def follow(self, other: Future[Loaded]) -> None:
        """Takes over the result of another future, which is cancelled with this one."""

        def copy(_: Future[Loaded]) -> None:
            if not (self.future.running() or self.future.set_running_or_notify_cancel()):
                return
            error = other.exception()
            self.done(other.result() if error is None else error)

        self.future.add_done_callback(lambda mine: other.cancel() if mine.cancelled() else None)
        other.add_done_callback(copy)


class PartReaders:
    """Reads up to `workers` parts at once, each with its own connection, until its block ends.

    Args:
        workers: see above.
        session: the session whose tasks read, if there is one.
        kind: the kind of its jobs.
        spark: reads by Spark's tasks of another session instead.
    """

    def __init__(
        self,
        workers: int,
        session: SparkSession | BackgroundSession | None = None,
        *,
        kind: str = "baseline",
        spark: SparkReader | None = None,
    ) -> None:
        self._workers, self._few = workers, FEW_ROWS
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="parts")
        self._processes: Executor | None = None
        self._open = ExitStack()
        self._spark = spark or (None if session is None else SessionReader(session, workers, kind))
        self._queue = queue.SimpleQueue[_PendingPart | None]()
        self._dealer: threading.Thread | None = None
        self._here: set[Future[Loaded]] = set()

    def __enter__(self) -> PartReaders:
        self._open.enter_context(self._threads)
        if self._spark is not None:
            self._dealer = threading.Thread(target=self._deal, args=(self._spark,), name="parts", daemon=True)
            self._dealer.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._dealer is not None:
            self._queue.put(None)
            self._dealer.join()
        self._open.close()

    def load(self, load: PartLoad, part: BaselinePart) -> Future[Loaded]:
        """Submits a part to a reader."""
        if self._dealer is None:
            return self._for(part).submit(load, part)
        one = _PendingPart(RequestedPart(load, part))
        self._queue.put(one)
        return one.future

    def _deal(self, spark: SparkReader) -> None:
        """Assigns parts to readers until there are no more."""
        while batch := self._next(spark):
            if self._few > 0 and sum(one.asked.part.rows for one in batch) < spark.limit:
                self._read_here(batch)
                continue
            if spark.state != "ready":
                few = self._few_of(batch)
                self._read_here(batch[:few])
                batch = batch[few:]
            if batch and self._is_ready(spark):
                wait(self._here)  # otherwise there would be more connections than `workers`
                self._here.clear()
                batch = self._read_in_spark(spark, batch)
            self._read_here(batch)

    def _next(self, spark: SparkReader) -> list[_PendingPart]:
        """Returns the parts that wait, at least one; none at the end."""
        found, one = list[_PendingPart](), self._queue.get()
        seconds = TOGETHER_S if spark.state in ("ready", "starting") else 0
        while one is not None:
            found.append(one)
            try:
                one = self._queue.get(timeout=seconds)
            except queue.Empty:
                return found
        if found:
            self._queue.put(None)
        return found

    def _few_of(self, batch: Sequence[_PendingPart]) -> int:
        """Returns the number of parts that threads read while a session starts."""
        rows = accumulate(max(one.asked.part.rows, PART_ROWS) for one in batch)
        return sum(self._few >= upto for upto in rows)

    @staticmethod
    def _is_ready(spark: SparkReader) -> bool:
        """Waits for the session for a while; returns whether it is ready."""
        until = time.monotonic() + WAIT_S
        while spark.state == "starting" and time.monotonic() < until:
            time.sleep(0.1)
        return spark.state == "ready"

    @staticmethod
    def _read_in_spark(spark: SparkReader, batch: list[_PendingPart]) -> list[_PendingPart]:
        """Reads parts in Spark's tasks; returns those that could not be read there."""
        taken = [one for one in batch if one.future.set_running_or_notify_cancel()]
        left = dict(enumerate(taken))
        try:
            spark.read([one.asked for one in taken], lambda at, result: left.pop(at).done(result))
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            for one in left.values():
                one.done(error)
            return []
        return list(left.values())

    def _read_here(self, batch: Sequence[_PendingPart]) -> None:
        for one in batch:
            made = self._for(one.asked.part).submit(one.asked.load, one.asked.part)
            self._here.add(made)
            one.follow(made)

    def _for(self, part: BaselinePart) -> Executor:
        """Returns the executor for a part outside Spark: threads for the first few rows, then processes."""
        self._few -= max(part.rows, PART_ROWS)
        if self._few >= 0:
            return self._threads
        if self._processes is None:
            self._threads.shutdown()  # otherwise there would be more connections than `workers`
            # spawn: a forked child would share the parent's replication connection and Arrow threads
            context = multiprocessing.get_context("spawn")
            made = ProcessPoolExecutor(
                self._workers,
                mp_context=context,
                initializer=_begin_worker,
                initargs=(os.getpid(), registered()),
            )
            self._processes = self._open.enter_context(made)
        return self._processes


def _begin_worker(parent: int, stores: Mapping[str, Mapping[str, str]]) -> None:
    """Makes the object stores of its parent known to this worker process, and ends it when its parent has
    ended, for any reason; nothing else would end it."""
    register_all(stores)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def misfit_reason(relation: Relation, column: str, text: str) -> str:
    """Returns why a lake type cannot hold a value, which is given as text."""
    return f"{misfit(relation.table, column, text)} (lake type {relation.column(column).type})"


def _without(batch: pa.RecordBatch, hidden: frozenset[str]) -> pa.RecordBatch:
    """Returns the batch with NULL in hidden columns."""
    if not hidden:
        return batch
    columns = [pa.nulls(batch.num_rows, f.type) if f.name in hidden else batch[f.name] for f in batch.schema]
    return pa.record_batch(columns, schema=batch.schema)


def _refused(relation: Relation, column: str, text: str) -> ValueRangeError:
    else_null = ", or set `on_bad_value: quarantine` to load NULL instead"
    return ValueRangeError(
        f"value {misfit_reason(relation, column, text)}",
        where=f"baseline of {relation.table}",
        hint=f'keep the column as text with `types: {{"{relation.table}.{column}": string}}`'
        + ("; a row key cannot be NULL" if column in relation.key else else_null),
    )
