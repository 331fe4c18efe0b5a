"""A session of one machine starts when something needs it, once; one of a cluster starts at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from tailrace.config.late_session import LateSession, is_started, seconds_to_start
from tailrace.config.spread import cluster, spread

from tailrace.apply import applier as applier_module
from tailrace.apply.cadence import Cadence
from tailrace.apply.targets.delta import distributed
from tailrace.config import late_session
from tailrace.runtime import session as sessions

from .apply_world import World

pytestmark = pytest.mark.unit


class Started:
    """Counts how often a session was started."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, *_: object, **__: object) -> Any:
        time.sleep(0.05)
        self.times += 1
        return SimpleNamespace(version="4.2.0")


def test_whichever_thread_is_first_starts_it_for_all() -> None:
    start = Started()
    late = LateSession(start).as_session
    assert (is_started(late), start.times) == (False, 0)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: late.version, range(8))) == {"4.2.0"}
    assert (is_started(late), start.times) == (True, 1)


def test_one_that_could_not_start_is_tried_again() -> None:
    tries = iter([RuntimeError("no Java"), SimpleNamespace(version="4.2.0")])

    def start() -> Any:
        if isinstance(found := next(tries), Exception):
            raise found
        return found

    late = LateSession(start).as_session
    with pytest.raises(RuntimeError, match="no Java"):
        _ = late.version
    assert not is_started(late)
    assert late.version == "4.2.0"


def test_what_a_target_forgets_starts_no_session() -> None:
    start = Started()
    distributed.forget(LateSession(start).as_session)
    assert start.times == 0


@pytest.mark.parametrize(
    ("master", "times"),
    [(None, 0), ("local[4]", 0), ("local-cluster[2,1,1024]", 1), ("spark://there:7077", 1)],
)
def test_a_session_of_a_cluster_starts_at_once(
    monkeypatch: pytest.MonkeyPatch, master: str | None, times: int
) -> None:
    start = Started()
    monkeypatch.setattr(sessions, "session", start)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)  # other tests' session
    sessions.late_session("t", {"spark.master": master} if master else {})
    assert start.times == times


def test_under_spark_submit_the_session_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Started()
    monkeypatch.setattr(sessions, "session", start)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not isinstance(sessions.late_session("t", {}), LateSession)
    assert start.times == 1


@pytest.mark.parametrize(("master", "there"), [("local[2]", False), ("local-cluster[2,1,1024]", True)])
def test_only_a_cluster_does_what_threads_can_do(master: str, there: bool) -> None:
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda _: master))
    assert (cluster(spark) is spark) is there
    late = LateSession(Started())
    assert cluster(late.as_session) is None and not late.started


def test_an_error_of_one_number_is_raised_when_the_others_are_done() -> None:
    done, other = list[int](), threading.Event()

    def work(batches: Any) -> Any:
        for batch in batches:
            (number,) = batch.column(0).to_pylist()
            if number == 0:
                other.wait(5)
                raise ValueError("no room")
            other.set()
            done.append(number)
            yield from ()

    with pytest.raises(ValueError, match="no room"):
        spread(work, 2, "n bigint")
    assert done == [1]


def test_the_seconds_of_its_start_are_known() -> None:
    late = LateSession(Started()).as_session
    assert (seconds_to_start(late), seconds_to_start(None)) == (0.0, 0.0)  # type: ignore[arg-type]
    assert late.version == "4.2.0"
    assert seconds_to_start(late) >= 0.05


def test_its_start_makes_no_batch_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes 4 seconds and lets Spark start, which takes 14: the next one is due 4 seconds later."""
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

    for module in (applier_module, late_session):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    late, world.point = LateSession(start), needs_it
    cadence = Cadence(1, 30, 99, 1 << 30, clock=lambda: now[0])
    applier = world.applier(late, max_changes=99)
    assert applier.catch_up(cadence=cadence) and (late.took, cadence.wait()) == (14, 4)
    now[0] += 10
    world.change("s.a", "D", 1)
    batch = world.store()
    assert batch is not None
    applier.add(batch)
    assert applier.catch_up(cadence=cadence) and cadence.wait() == 4
