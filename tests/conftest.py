"""One Spark session for all tests: starting one takes longer than most tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tailrace.runtime.local_settings import NO_CODE, QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example took says how busy the machine is.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# Tests run each piece of code a few times on a few rows: the second compiler would cost more than it gives (40 %
# of a JVM's CPU time). With one compiler Java keeps room for 48 MB of code only, which a session fills within
# minutes: it then throws code away and compiles it again (another 13 %).
# Read by Spark's scripts, so it holds in the processes that tests start, too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK)


LONG = {"test_names_like_those_that_are_added", "test_outcomes_are_the_same_without_what_it_declares"}
"""Tests of the conformance kits, which know no marks, that are slow ones here."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.partition("[")[0] in LONG:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tailrace.runtime.session import session

    # Java made from each plan and compiled would be another quarter. It is made where a task is a process of its
    # own (demo, cluster, kill -9), in `make bench`, and in all tests with TAILRACE_CODEGEN=1.
    plans = {} if os.environ.get("TAILRACE_CODEGEN") else NO_CODE
    made = session("tests", master="local[2]", conf={"spark.driver.memory": "5g", **plans})
    yield made
    made.stop()
