"""A step of the pipeline, as Spark's UI shows it, and counts of steps run by Spark and by the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace

import pyarrow as pa

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A picklable function from Arrow batches to Arrow batches."""


@dataclass(frozen=True)
class Job:
    """One step of the pipeline.

    Attributes:
        kind: `store`, `apply`, `baseline`, `validate`, `convert` …
        text: the description that an operator reads in Spark's UI.
        changes: the number of changes (or rows) in the step.
        counts: whether `changes` are counted; if a step has several jobs, only one of them counts.
    """

    kind: str
    text: str
    changes: int = 0
    counts: bool = True


@dataclass(frozen=True)
class JobCount:
    """The steps of one kind since the process started.

    Attributes:
        jobs, tasks: those that Spark ran.
        in_spark, in_driver: the number of changes (or rows) handled by Spark's tasks and by the driver.
    """

    jobs: int = 0
    tasks: int = 0
    in_spark: int = 0
    in_driver: int = 0


_counts: dict[str, JobCount] = {}
_lock = threading.Lock()


def count_driver(job: Job) -> None:
    """Counts a step that the driver ran."""
    _add(job, JobCount(in_driver=job.changes if job.counts else 0))


def count_spark(job: Job, jobs: int, tasks: int) -> None:
    """Counts a step that Spark ran."""
    _add(job, JobCount(jobs, tasks, in_spark=job.changes if job.counts else 0))


def counted() -> dict[str, JobCount]:
    """The steps of this process by kind."""
    with _lock:
        return dict(_counts)


def since(before: Mapping[str, JobCount]) -> dict[str, JobCount]:
    """The steps of this process since `counted` returned `before`."""
    found = {}
    for kind, now in counted().items():
        was = before.get(kind, JobCount())
        found[kind] = JobCount(*(a - b for a, b in zip(astuple(now), astuple(was), strict=True)))
    return found


def summary(counts: Mapping[str, JobCount]) -> str:
    """Summarizes what Spark did, in one sentence; empty if nothing was done.

    >>> summary({"store": JobCount(2, 4, 900, 100), "warm-up": JobCount(1, 2)})
    'Spark ran 2 jobs with 4 tasks (store 2); its tasks handled 90 % of 1,000 changes and rows'
    """
    steps = {kind: one for kind, one in counts.items() if one.in_spark or one.in_driver}
    jobs, tasks = sum(one.jobs for one in steps.values()), sum(one.tasks for one in steps.values())
    by_spark, total = (
        sum(one.in_spark for one in steps.values()),
        sum(one.in_spark + one.in_driver for one in steps.values()),
    )
    if not total:
        return ""
    kinds = ", ".join(f"{kind} {one.jobs}" for kind, one in steps.items() if one.jobs)
    return (
        f"Spark ran {jobs:,} jobs with {tasks:,} tasks{f' ({kinds})' if kinds else ''}; its tasks handled "
        f"{by_spark * 100 // total} % of {total:,} changes and rows"
    )


def _add(job: Job, more: JobCount) -> None:
    with _lock:
        before = _counts.get(job.kind, JobCount())
        _counts[job.kind] = replace(
            before,
            jobs=before.jobs + more.jobs,
            tasks=before.tasks + more.tasks,
            in_spark=before.in_spark + more.in_spark,
            in_driver=before.in_driver + more.in_driver,
        )
