"""The values of the metrics, read from a task's records; no rows of change tables or targets are read.

They come from `status` (rolled-up control tables, live files) and from the counters of the process that
serves them. Spark is not asked, so a scrape does not wait for it.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from deltalake.exceptions import DeltaError
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ... import __version__
from ...config.task import Task
from ...errors import TailraceError
from ...lake import json_files
from ...operate import disk
from ...operate.disk import DiskUse
from ...operate.status import Status, process, status
from ...state.capture_state import STEPS
from .declared import CAPTURE, METRICS, PIPELINE

logger = logging.getLogger("tailrace.metrics")
FRESH_S = 2.0
"""Seconds for which scrapes share one read of the task's state."""
_LSN_DIGITS = 16


class Sample(NamedTuple):
    """A value of a metric; a `Timings` for a histogram."""

    name: str
    labels: tuple[str, ...]
    value: Any


class TaskCollector(Collector):
    """Collects a task's metrics for Prometheus.

    Args:
        task: the task.
        halves: `capture`, `pipeline` or both: whose metrics are collected.
        counted: returns the counters of this process's pipeline (`Counts.as_dict`), None before it has one.
    """

    def __init__(
        self, task: Task, halves: frozenset[str], counted: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        self._task, self._halves, self._counted = task, halves, counted
        self._began = time.time()
        self._lsn = task.source.url.startswith(("postgresql:", "postgres:"))
        self._lock, self._read_at, self._state = threading.Lock(), -FRESH_S, list[Sample]()

    def collect(self) -> Iterator[Family]:
        """Yields all metric families that have values now."""
        found = self._cached_state()
        if (counted := self._counted()) is not None:
            found = [*found, *pipeline_samples(counted)]
        by_name: dict[str, list[Sample]] = {}
        for one in found:
            by_name.setdefault(one.name, []).append(one)
        for name, samples in by_name.items():
            yield _family(name, self._task.name, samples)

    def _cached_state(self) -> list[Sample]:
        with self._lock:  # there may be several scrapes at once
            if time.monotonic() - self._read_at >= FRESH_S:
                self._state = self._read_state()
                self._read_at = time.monotonic()
            return self._state

    def _read_state(self) -> list[Sample]:
        always = [Sample("tailrace_build_info", (__version__,), 1)]
        always += [
            Sample("tailrace_process_start_time_seconds", (half,), self._began) for half in self._halves
        ]
        try:
            read = [*self._samples()]
        except (OSError, ValueError, DeltaError, TailraceError) as error:
            logger.warning("metrics without the task's state, which cannot be read at the moment: %s", error)
            return [*always, Sample("tailrace_state_readable", (), 0)]
        return [*always, Sample("tailrace_state_readable", (), 1), *read]

    def _samples(self) -> Iterator[Sample]:
        if PIPELINE in self._halves:
            found = status(self._task)
            yield from process_samples(PIPELINE, found.pipeline)
            yield from table_samples(found, lsn=self._lsn)
            if (done := json_files.read(self._task.run_path, "maintenance")) is not None:
                yield Sample("tailrace_stage_last_success_timestamp_seconds", ("maintenance",), done["done"])
            yield from freshness_samples(found.pipeline or {})
            if (use := disk.newest(self._task)) is not None:
                yield from disk_samples(use)
        if CAPTURE in self._halves:
            capture = process(self._task, CAPTURE)
            yield from process_samples(CAPTURE, capture)
            yield from capture_samples(capture or {}, lsn=self._lsn)


def process_samples(name: str, said: Mapping[str, Any] | None) -> Iterator[Sample]:
    """Yields whether a process of the task runs, and its state."""
    running = bool(said and said["running"])
    yield Sample("tailrace_process_up", (name,), int(running))
    if said and running:
        yield Sample("tailrace_process_state", (name, str(said.get("state"))), 1)


def freshness_samples(pipeline: Mapping[str, Any]) -> Iterator[Sample]:
    """Yields the intervals between batches of a running pipeline."""
    said = pipeline.get("freshness")
    if not pipeline.get("running") or not said:
        return
    for table, one in {"*": said, **said["tables"]}.items():
        yield Sample("tailrace_freshness_seconds", (table,), one["interval"])


def disk_samples(use: DiskUse) -> Iterator[Sample]:
    """Yields the disk space of a task."""
    for kind, size in use.sizes.items():
        yield Sample("tailrace_disk_bytes", (kind,), size)
    yield Sample("tailrace_disk_files", (), use.files)
    if use.free is not None:
        yield Sample("tailrace_disk_free_bytes", (), use.free)
    if use.growth is not None:
        yield Sample("tailrace_disk_growth_bytes_per_day", (), use.growth)


def capture_samples(said: Mapping[str, Any], *, lsn: bool) -> Iterator[Sample]:
    """Yields the values that the capture process reports (`state.capture_state`).

    `lsn`: whether positions contain an LSN.
    """
    for metric, key in (
        ("tailrace_source_lag_seconds", "lag_seconds"),
        ("tailrace_source_lag_bytes", "lag_bytes"),
        ("tailrace_source_retained_bytes", "retained_bytes"),
        ("tailrace_source_headroom_bytes", "left_bytes"),
        ("tailrace_capture_records_total", "records"),
        ("tailrace_capture_bytes_total", "bytes"),
        ("tailrace_capture_transactions_total", "transactions"),
    ):
        if said.get(key) is not None:
            yield Sample(metric, (), said[key])
    if lsn and said.get("position"):
        yield Sample("tailrace_source_position_bytes", (), int(said["position"][:_LSN_DIGITS], 16))
    if said.get("commit_seconds"):
        yield Sample("tailrace_stage_seconds", ("capture",), said["commit_seconds"])
    if said.get("read_at") is not None:
        yield Sample("tailrace_stage_last_success_timestamp_seconds", ("capture",), said["read_at"])
    for table, one in (said.get("baselines") or {}).items():
        if said.get("running") and one.get("state") == "running":
            yield Sample("tailrace_baseline_parts", (table,), one.get("parts") or 0)
            yield Sample("tailrace_baseline_parts_done", (table,), one.get("parts_done") or 0)


def table_samples(found: Status, *, lsn: bool) -> Iterator[Sample]:
    """Yields the progress of the task and each of its tables. `lsn`: whether positions contain an LSN."""
    for stage in ("captured", "stored", "applied"):
        yield Sample("tailrace_change_number", (stage,), getattr(found, stage) or 0)
    for t in found.tables:
        state = "baseline" if t.state.startswith("baseline ") else t.state
        yield Sample("tailrace_table_state", (t.table, state), 1)
        yield Sample("tailrace_table_lag_seconds", (t.table,), t.seconds_behind)
        yield Sample("tailrace_table_behind_rows", (t.table,), t.behind)
        yield Sample("tailrace_table_errors", (t.table,), t.errors)
        yield Sample("tailrace_table_stored_rows_total", (t.table,), t.stored)
        for operation, rows in (("insert", t.inserted), ("update", t.updated), ("delete", t.deleted)):
            yield Sample("tailrace_table_applied_rows_total", (t.table, operation), rows)
        if t.baseline_rows is not None:
            yield Sample("tailrace_table_baseline_rows", (t.table,), t.baseline_rows)
        if lsn and t.position:
            lsn_number = int(t.position[:_LSN_DIGITS], 16)
            yield Sample("tailrace_table_position_bytes", (t.table,), lsn_number)
        if t.last_change is not None:
            at = dt.datetime.fromisoformat(t.last_change).timestamp()
            yield Sample("tailrace_table_last_apply_timestamp_seconds", (t.table,), at)


def pipeline_samples(counted: Mapping[str, Any]) -> Iterator[Sample]:
    """Yields the counters of store and apply since their process started."""
    for stage in ("store", "apply"):
        yield Sample("tailrace_stage_seconds", (stage,), counted[f"{stage}_seconds"])
        if counted[f"{stage}_at"] is not None:
            yield Sample("tailrace_stage_last_success_timestamp_seconds", (stage,), counted[f"{stage}_at"])
    for plan, took in counted["plans"].items():
        yield Sample("tailrace_apply_seconds", (plan,), took)
    for table, mine in counted["tables"].items():
        for kind, many in mine["conflicts"].items():
            yield Sample("tailrace_conflicts_total", (table, kind), many)
        yield Sample("tailrace_flagged_changes_total", (table,), mine["flagged"])


def _family(name: str, task: str, samples: list[Sample]) -> Family:
    said = METRICS[name]
    labels = ["task", *said.labels]
    if said.kind == "histogram":
        steps = HistogramMetricFamily(name, said.help, labels=labels)
        for one in samples:
            steps.add_metric([task, *one.labels], _buckets(one.value["counts"]), one.value["seconds"])
        return steps
    family = (GaugeMetricFamily if said.kind == "gauge" else CounterMetricFamily)(
        name, said.help, labels=labels
    )
    for one in samples:
        family.add_metric([task, *one.labels], one.value)
    return family


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Returns cumulative buckets, as Prometheus expects."""
    total, buckets = 0, list[tuple[str, float]]()
    for bound, many in zip([*map(str, STEPS), "+Inf"], counts, strict=True):
        total += many
        buckets.append((bound, total))
    return buckets
