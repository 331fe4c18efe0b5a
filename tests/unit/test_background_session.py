"""A session that starts in the background: the driver works until it is ready, and after it was lost."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.apply import applier as applier_module
from tailrace.apply.cadence import Cadence
from tailrace.config.settings import SparkSettings
from tailrace.errors import CancelledError, ConfigError, SparkLostError
from tailrace.execution import BackgroundSession, Job, executor_of, has_started, map_tasks, seconds_waited
from tailrace.execution import session as session_module
from tailrace.runtime import session as sessions
from tailrace.targets.delta import spark_io

from .apply_world import World

pytestmark = pytest.mark.unit
STORE = Job("store", "store 5,000 changes of 1 table", 5_000)


class Started:
    """Counts how often a session was started."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, *_: object, **__: object) -> Any:
        time.sleep(0.05)
        self.times += 1
        return SimpleNamespace(version="4.2.0")


def begun(late: BackgroundSession, state: str = "ready") -> None:
    late.begin()
    end = time.monotonic() + 5
    while late.state != state:
        assert time.monotonic() < end, late.state
        time.sleep(0.01)


def test_first_thread_that_needs_sql_starts_the_session_for_all() -> None:
    start = Started()
    late = BackgroundSession(start).as_session
    assert (has_started(late), start.times) == (False, 0)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: late.version, range(8))) == {"4.2.0"}
    assert (has_started(late), start.times) == (True, 1)


def test_start_that_failed_is_tried_again_by_the_next_use() -> None:
    tries = iter([RuntimeError("no Java"), SimpleNamespace(version="4.2.0")])

    def start() -> Any:
        if isinstance(found := next(tries), Exception):
            raise found
        return found

    late = BackgroundSession(start).as_session
    with pytest.raises(RuntimeError, match="no Java"):
        _ = late.version
    assert not has_started(late)
    assert late.version == "4.2.0"


def test_failed_start_in_the_background_is_raised_by_check() -> None:
    def start() -> Any:
        raise ConfigError("no Java")

    late = BackgroundSession(start)
    late.check()
    begun(late, "failed")
    with pytest.raises(ConfigError, match="no Java"):
        late.check()


def test_forgetting_a_target_starts_no_session() -> None:
    start = Started()
    spark_io.clear_cache(BackgroundSession(start).as_session)
    assert start.times == 0


def test_session_is_ready_for_tasks_once_it_is_warmed_up() -> None:
    warm = threading.Event()
    late = BackgroundSession(Started(), warm_up=lambda _: warm.wait(5) and None)
    late.begin()
    assert late.version == "4.2.0"  # what needs SQL does not wait for workers
    assert (late.state, executor_of(late.as_session, 5_000)) == ("starting", None)
    warm.set()
    begun(late)
    assert executor_of(late.as_session, 5_000) is late.ready is not None


@pytest.mark.parametrize(("changes", "spark"), [(1_999, False), (2_000, True)])
def test_steps_below_the_driver_limit_run_in_the_driver(changes: int, spark: bool) -> None:
    late = BackgroundSession(Started(), driver_limit=2_000)
    begun(late)
    assert (executor_of(late.as_session, changes) is not None) is spark


def test_session_that_starts_when_needed_runs_no_tasks() -> None:
    start = Started()
    late = BackgroundSession(start, when_needed=True)
    late.begin()
    assert map_tasks(abs, [-1, 2], session=late.as_session, job=STORE) == [1, 2]
    assert (start.times, late.state) == (0, "not started")


@pytest.mark.parametrize(("runs", "times"), [(False, 0), (True, 1)])
def test_running_session_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, runs: bool, times: int) -> None:
    start = Started()
    monkeypatch.setattr(sessions, "session", start)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)  # other tests' session
    if runs:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # under spark-submit
    late = sessions.background_session("t", SparkSettings(start="at_once"))
    assert (late.running is not None, start.times) == (runs, times)


def test_lost_session_is_replaced_and_the_driver_works_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Started()
    late = BackgroundSession(start)
    begun(late)

    def gone(*_: object) -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr("tailrace.execution.spark.run", gone)
    monkeypatch.setattr(sys.modules["tailrace.execution.map_tasks"], "is_lost", lambda _: True)
    assert map_tasks(abs, [-1, 2], session=late.as_session, job=STORE) == [1, 2]
    begun(late)
    assert start.times == 2


def test_session_that_is_lost_again_and_again_ends_the_task() -> None:
    late = BackgroundSession(Started())
    for _ in range(session_module.RESTARTS):
        begun(late)
        late.replace_lost(late.ready, "store")
    begun(late)
    with pytest.raises(SparkLostError, match="was lost 4 times"):
        late.replace_lost(late.ready, "store")


def test_session_whose_loss_two_threads_notice_is_replaced_once() -> None:
    """The second thread neither waits for the start of the next session, nor takes that for lost."""
    start = Started()
    late = BackgroundSession(start)
    begun(late)
    lost = late.ready
    late.replace_lost(lost, "store")
    began = time.monotonic()
    late.replace_lost(lost, "apply")
    assert time.monotonic() - began < 0.04  # a start takes 0.05 s
    begun(late)
    late.replace_lost(lost, "validate")
    assert (late.state, start.times) == ("ready", 2)


def test_session_of_others_is_not_replaced() -> None:
    given = Started()()
    late = BackgroundSession(Started(), given=given)
    with pytest.raises(SparkLostError, match="JVM is gone"):
        late.replace_lost(given, "store")


def test_cancelled_session_starts_no_job() -> None:
    late = BackgroundSession(Started())
    late.add_tag("t", "store")
    late.cancel()
    with pytest.raises(CancelledError, match="the task ends"):
        late.add_tag("u", "store")


def test_error_of_one_task_is_raised_when_the_others_are_done() -> None:
    done, other = list[int](), threading.Event()

    def work(number: int) -> int:
        if number == 0:
            other.wait(5)
            raise ValueError("no room")
        other.set()
        done.append(number)
        return number

    with pytest.raises(ValueError, match="no room"):
        map_tasks(work, [0, 1], session=None, job=STORE)
    assert done == [1]


def test_seconds_that_threads_wait_for_the_start_are_known() -> None:
    late = BackgroundSession(Started()).as_session
    assert (seconds_waited(late), seconds_waited(None)) == (0.0, 0.0)  # type: ignore[arg-type]
    assert late.version == "4.2.0"
    assert seconds_waited(late) >= 0.05


def test_waiting_for_the_start_makes_no_batch_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes 4 seconds and waits for Spark's start, which takes 14: the next one is due 4 seconds later."""
    world, now = World(("s.a",)).installed(monkeypatch), [100.0]
    world.baseline("s.a")()
    world.change("s.a", "I", id=1, v="new")
    world.store()

    def start() -> Any:
        now[0] += 14
        return SimpleNamespace(version="4.2.0")

    def needs_it(what: str, _: str) -> None:
        if what == "before the record":
            now[0] += 4
            assert late.version == "4.2.0"

    for module in (applier_module, session_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    late, world.point = BackgroundSession(start).as_session, needs_it
    cadence = Cadence(lambda: 1, 99, 1 << 30, clock=lambda: now[0])
    applier = world.applier(late, max_changes=99)
    assert applier.catch_up(cadence=cadence) and (seconds_waited(late), cadence.wait()) == (14, 4)
    now[0] += 10
    world.change("s.a", "D", 1)
    batch = world.store()
    assert batch is not None
    applier.add(batch)
    assert applier.catch_up(cadence=cadence) and cadence.wait() == 4
