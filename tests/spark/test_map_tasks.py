"""Tasks as jobs of Spark: results, errors, guards, names and cancelling."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailrace.errors import ApplyError, CancelledError, LeaseLostError
from tailrace.execution import BackgroundSession, Job, JobCount, counted, described, map_tasks
from tailrace.lake import delta as lake
from tailrace.lake import guards, written

pytestmark = pytest.mark.spark
MANY = Job("store", "store 5,000 changes of 3 tables", 5_000)


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def refused(number: int) -> int:
    if number == 2:
        raise ApplyError("row refused", where="shop.a", hint="look")
    return number


def checked(number: int) -> int:
    guards.check()
    return number


def appended(path: str) -> None:
    lake.append(path, pa.table({"n": [1]}))


def lost() -> None:
    raise LeaseLostError("taken over")


def slow(number: int) -> int:
    time.sleep(60)
    return number


def new_jobs(before: dict[str, JobCount], kind: str) -> JobCount:
    was, now = before.get(kind, JobCount()), counted()[kind]
    return JobCount(
        now.jobs - was.jobs, now.tasks - was.tasks, now.in_spark - was.in_spark, now.in_driver - was.in_driver
    )


def test_results_of_spark_tasks_are_in_order_and_from_other_processes(spark: SparkSession) -> None:
    before = counted()
    found = map_tasks(square, [1, 2, 3], session=spark, job=MANY)
    assert [number for number, _ in found] == [1, 4, 9]
    assert os.getpid() not in {pid for _, pid in found}
    assert new_jobs(before, "store") == JobCount(1, 3, 5_000, 0)


def test_light_inputs_share_tasks(spark: SparkSession) -> None:
    before = counted()
    found = map_tasks(square, range(50), session=spark, job=MANY, weights=range(50))
    assert [number for number, _ in found] == [n * n for n in range(50)]
    assert new_jobs(before, "store").tasks == 8


def test_tasks_are_no_more_than_may_run_at_once(spark: SparkSession) -> None:
    before = counted()
    found = map_tasks(square, range(5), session=spark, job=MANY, at_once=1)
    assert [number for number, _ in found] == [0, 1, 4, 9, 16]
    assert new_jobs(before, "store").tasks == 1


def test_error_of_a_task_keeps_its_class_place_and_hint(spark: SparkSession) -> None:
    with pytest.raises(ApplyError) as found:
        map_tasks(refused, [1, 2, 3], session=spark, job=MANY)
    assert (found.value.what, found.value.where, found.value.hint) == ("row refused", "shop.a", "look")


def test_tasks_check_the_guards_of_the_driver(spark: SparkSession) -> None:
    with guards.under(lost), pytest.raises(LeaseLostError, match="taken over"):
        map_tasks(checked, [1], session=spark, job=MANY)


def test_commits_of_tasks_are_counted_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    before, paths = written.total(), [str(tmp_path / name) for name in "ab"]
    map_tasks(appended, paths, session=spark, job=MANY)
    now = written.total().since(before)
    assert (now.files, {path: size > 0 for path, size in now.sizes.items()}) == (
        4,
        dict.fromkeys(paths, True),
    )


def test_jobs_have_a_group_and_a_description(spark: SparkSession) -> None:
    context = spark.sparkContext
    with described(spark, MANY):
        said = [context.getLocalProperty(f"spark.{name}") for name in ("jobGroup.id", "job.description")]
        spark.range(10).count()
    assert said == [f"{context.appName}: store", MANY.text]
    assert context.getLocalProperty("spark.job.description") is None


def test_ending_a_task_cancels_its_jobs(spark: SparkSession) -> None:
    late: Any = BackgroundSession(lambda: spark, given=spark)
    late.begin()
    while late.ready is None:
        time.sleep(0.01)
    stop = threading.Event()
    late.cancel_when(stop)
    threading.Timer(1.0, stop.set).start()
    began = time.monotonic()
    with pytest.raises(CancelledError, match="the task ends"):
        map_tasks(slow, [1], session=late, job=MANY)
    assert time.monotonic() - began < 30
