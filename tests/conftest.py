"""One Spark session for all tests: starting one takes longer than most tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tailrace.runtime.local_settings import PLAIN_PLANS, QUICK

from .examples import rounds
from .shared_spark import shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example took says how busy the machine is.
settings.register_profile("tests", deadline=None, max_examples=rounds(40))
settings.load_profile("tests")

# A program that a test starts runs each piece of code a few times on a few rows: the second compiler would cost more
# than it gives. Read by Spark's scripts, so it holds in the processes that tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK)
# A Spark of its own would be most of what a program that a test starts does: tests of Spark say so in the task file.
os.environ.setdefault("TAILRACE_SPARK_START", "when_needed")
# The one session of all tests runs for many minutes: what it uses most often is worth it. At Java's own thresholds,
# an eighth of these, half of its CPU time would go into compiling.
LASTING = (
    "-XX:ReservedCodeCacheSize=480m -XX:Tier4InvocationThreshold=40000 -XX:Tier4MinInvocationThreshold=4800 "
    "-XX:Tier4CompileThreshold=120000 -XX:Tier4BackEdgeThreshold=320000"
)


LONG = {
    "test_files",
    "test_names_like_those_that_are_added",
    "test_outcomes_are_the_same_without_what_it_declares",
}
"""Tests of the conformance kits, which know no marks, that are slow ones here."""
KEEPS_CLASSES = "test_spark_starts_with_the_classes_that_were_kept"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        if item.name.partition("[")[0] in LONG:
            item.add_marker(pytest.mark.slow)
    yield
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Each process begins with a run of tests of its own, and the one that is done first takes half of what another
    has left, from its end. The longest tests are not the last; the first one keeps Spark's classes for those that
    start a Spark of their own."""
    if "spark" in getattr(item, "fixturenames", ()):
        return 1
    if item.name == KEEPS_CLASSES:
        return -1
    return 0 if item.get_closest_marker("slow") else 2


@pytest.fixture(scope="session", autouse=True)
def _commands_made_once() -> Iterator[None]:
    """typer makes all commands of all groups again for each one that a test calls: a tenth of a second."""
    from typer.main import get_command

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        _remember_names(patch)
        with shared(folder, _started) as made:
            yield made


def _started() -> SparkSession:
    from tailrace.runtime import hadoop_storage
    from tailrace.runtime.session import session

    # As for a command that reads little: Java made from each plan and compiled would be another quarter, plans made
    # again between their stages a tenth. Both are so where a task is a process of its own (demo, cluster, kill -9), in
    # `make bench`, and in all tests with TAILRACE_CODEGEN=1.
    plans = {} if os.environ.get("TAILRACE_CODEGEN") else PLAIN_PLANS
    with pytest.MonkeyPatch.context() as patch:
        if os.environ["SPARK_SUBMIT_OPTS"] == QUICK:
            patch.setenv("SPARK_SUBMIT_OPTS", LASTING)
        jars = ",".join(map(str, hadoop_storage.jars()))
        conf = {"spark.driver.memory": "5g", "spark.jars": jars, **plans}
        return session("tests", master="local[2]", conf=conf)


def _remember_names(patch: pytest.MonkeyPatch) -> None:
    """py4j asks Java about a name (`functions`, then `col`) each time it is used; Java looks through all jars for
    some of them. A tenth of the time of plans over a few rows."""
    from py4j.java_gateway import JavaClass, JavaMember, JVMView

    for kind in (JVMView, JavaClass):
        ask = kind.__getattr__

        def asked_once(self: Any, name: str, ask: Callable[[Any, str], Any] = ask) -> Any:
            found = ask(self, name)
            # Packages and values may be others next time.
            if isinstance(found, JavaClass | JavaMember):
                self.__dict__[name] = found
            return found

        patch.setattr(kind, "__getattr__", asked_once)
