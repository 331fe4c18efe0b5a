"""Runs tasks as jobs of a Spark session: RDD jobs where the session has RDDs (half the cost of the others),
`mapInArrow` through Spark Connect.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ..errors import TailraceError
from ..lake import guards, written
from .job import Job, count_spark
from .session import background, has_rdds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_I = TypeVar("_I")
_R = TypeVar("_R")
PACKS = 4
"""The maximum number of tasks per slot into which light inputs are packed."""
_numbers = itertools.count()


@dataclass(frozen=True)
class _Failed:
    """A tailrace error of a task, returned as a result: retrying the task would not help."""

    error: TailraceError


@dataclass(frozen=True)
class _Partition:
    """The function of a partition whose rows are pickled lists of inputs. Yields, for each row, a pickled
    list of results and what was committed."""

    task: Callable[[Any], Any]

    def __call__(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        for row in rows:
            before = written.total()
            results = [self._one(each) for each in pickle.loads(row)]
            yield pickle.dumps((results, written.total().since(before)))

    def _one(self, each: Any) -> Any:
        try:
            return self.task(each)
        except TailraceError as error:
            return _Failed(error)


@dataclass(frozen=True)
class _ArrowPartition:
    """A `_Partition` for `mapInArrow`: the rows are in a column of bytes."""

    work: guards.HandedOn

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            results = [next(iter(self.work([row]))) for row in batch.column(1).to_pylist()]
            yield pa.record_batch(
                [pa.array(numbers, pa.int32()), pa.array(results, pa.binary())], ["n", "made"]
            )


def slots(session: SparkSession) -> int:
    """Returns the number of tasks that run at once, as far as the session knows."""
    if has_rdds(session):
        return max(1, session.sparkContext.defaultParallelism)
    return max(1, int(session.conf.get("spark.default.parallelism", "") or os.cpu_count() or 1))


def run(
    session: SparkSession,
    running: SparkSession,
    task: Callable[[_I], _R],
    inputs: Sequence[_I],
    job: Job,
    weights: Sequence[int] | None,
    at_once: int | None,
) -> list[_R]:
    """Returns the results of a task for all inputs, in their order; see `map_tasks`. `running`: the running
    session of `session`."""
    from pyspark import cloudpickle

    partitions = _partitions(running, len(inputs), weights, at_once)
    packed: list[bytes] = [cloudpickle.dumps([inputs[at] for at in one]) for one in partitions]  # type: ignore[no-untyped-call]
    work = guards.handed_on(_Partition(task))
    with described(session, job, count=False):
        if has_rdds(running):
            context = running.sparkContext
            found = context.runJob(context.parallelize(packed, len(packed)), work)
        else:
            found = _by_arrow(running, packed, work)
    count_spark(job, 1, len(packed))
    results: dict[int, Any] = {}
    for one, result in zip(partitions, found, strict=True):
        values, commits = pickle.loads(result)
        written.add_all(commits)
        results |= zip(one, values, strict=True)
    for one in results.values():
        if isinstance(one, _Failed):
            raise one.error
    return [results[at] for at in range(len(inputs))]


def _by_arrow(session: SparkSession, packed: Sequence[bytes], work: guards.HandedOn) -> list[bytes]:
    many = len(packed)
    rows = pa.table({"n": pa.array(range(many), pa.int32()), "input": pa.array(packed, pa.binary())})
    spread = session.createDataFrame(rows).repartitionById(many, "n")
    found = spread.mapInArrow(_ArrowPartition(work), "n int, made binary").collect()
    return [bytes(row["made"]) for row in sorted(found, key=lambda row: int(row["n"]))]


def _partitions(
    session: SparkSession, many: int, weights: Sequence[int] | None, at_once: int | None
) -> list[list[int]]:
    """Returns the indexes of each partition's inputs: one input each, unless that would be more than may run
    at once, or the inputs are too light for that."""
    available, most = slots(session), many
    if at_once is not None and at_once < available:
        most = min(most, at_once)
    if weights is not None:
        most = min(most, PACKS * available)
    if most == many:
        return [[at] for at in range(many)]
    sizes = [1] * many if weights is None else list(weights)
    found: list[list[int]] = [[] for _ in range(most)]
    loads = [0] * most
    for at in sorted(range(many), key=lambda each: -sizes[each]):
        least = loads.index(min(loads))
        found[least].append(at)
        loads[least] += max(1, sizes[at])
    return [sorted(one) for one in found]


def over_rows(
    df: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str | Any
) -> DataFrame:
    """Returns the rows that a task computes from each partition of a DataFrame.

    Columns travel under plain names, because `mapInArrow` cannot handle dots and back quotes. Commits of the
    task check the guards of the driver.
    """
    plain = df.toDF(*[f"c{at}" for at in range(len(df.columns))])
    return plain.mapInArrow(guards.handed_on(_RenamedColumns(task, tuple(df.columns))), schema)


def map_partitions(df: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], _R]) -> list[_R]:
    """Returns the results of a task that gets the rows of each partition of a DataFrame; they are small and
    can be pickled.

    Raises:
        TailraceError: raised by the task, as the task raised it.
    """
    found = [pickle.loads(row["made"]) for row in over_rows(df, _Pickled(task), "made binary").collect()]
    for one in found:
        if isinstance(one, _Failed):
            raise one.error
    return found


@dataclass(frozen=True)
class _Pickled:
    """Yields the pickled result of a task; nothing for a partition without rows."""

    task: Callable[[Iterator[pa.RecordBatch]], Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        try:
            result = self.task(itertools.chain([first], batches))
        except TailraceError as error:
            result = _Failed(error)
        yield pa.record_batch([pa.array([pickle.dumps(result)], pa.binary())], ["made"])


@dataclass(frozen=True)
class _RenamedColumns:
    """Restores the column names of a task's batches."""

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


@contextmanager
def described(session: SparkSession | None, job: Job, *, count: bool = True) -> Iterator[None]:
    """Sets group and description of the jobs that the calling thread starts within the block.

    Without a session, or with one that has not started, the block runs unchanged. `count`: counts the jobs at
    the end.

    Raises:
        CancelledError: the session's jobs were cancelled in the meantime.
    """
    found, tag = background(session), f"tailrace-{os.getpid()}-{next(_numbers)}"
    real = session if found is None else found.running
    if real is None or not has_rdds(real):
        yield
        return
    if found is not None:
        found.add_tag(tag, job.text)
    context = real.sparkContext
    mine = {
        "callSite.short": f"tasks of {job.kind}",  # by default lines of code of pyspark and tailrace
        "spark.scheduler.pool": job.kind,  # a long baseline does not delay store and apply
    }
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", *mine)
    before = [context.getLocalProperty(name) for name in names]
    context.setJobGroup(group_of(real, job.kind), job.text)
    for name, value in mine.items():
        context.setLocalProperty(name, value)
    context.addJobTag(tag)
    try:
        yield
    except Exception as error:
        if found is not None and found.cancelled:
            raise found.cancelled_error(job.text) from error
        raise
    finally:
        if found is not None:
            found.tags.discard(tag)
        with suppress(Exception):  # the JVM may be gone
            if count:
                _count(context, tag, job)
            context.removeJobTag(tag)
            for name, was in zip(names, before, strict=True):
                context.setLocalProperty(name, was)  # type: ignore[arg-type]


def group_of(session: SparkSession, kind: str) -> str:
    """Returns the group of a session's jobs of one kind: `tailrace shop: apply`."""
    return f"{session.sparkContext.appName}: {kind}"


def _count(context: Any, tag: str, job: Job) -> None:
    """Counts the jobs with a tag, and their tasks."""
    tracker = context._jsc.sc().statusTracker()
    jobs = list(tracker.getJobIdsForTag(tag))
    infos = [info.get() for info in map(tracker.getJobInfo, jobs) if info.isDefined()]
    stages = [tracker.getStageInfo(at) for info in infos for at in info.stageIds()]
    count_spark(job, len(jobs), sum(stage.get().numTasks() for stage in stages if stage.isDefined()))
