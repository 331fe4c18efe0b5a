"""Repairs of a running task: the command asks, the pipeline's process makes them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.config.task import Task
from tailrace.errors import ConfigError, TailraceError
from tailrace.model.steps import Steps
from tailrace.runtime.repair_requests import LOST_S, Options, Outcome, RepairRequests, request_repair
from tailrace.state import live
from tailrace.validate.compare import TableResult
from tailrace.validate.repair import RepairResult
from tailrace.validate.validation import ValidationReport

from .task_home import TaskHome

WANTED = Options(("s.t",), False, 3, 60.0, "me")
DIFFERS = ValidationReport(
    "0A", [TableResult("s.t", False, 3, 2, 256, 1, 1, [{"side": "source", "id": "7"}])]
)
EQUAL = ValidationReport("0B", [TableResult("s.t", True, 3, 3, 256, 0)])
DONE = Outcome(DIFFERS, [RepairResult("s.t", inserts=1, run_id="r-repair")], EQUAL)

Work = Callable[[Options, Steps], Outcome]


@contextmanager
def pipeline(task: Task, work: Work, over: threading.Event) -> Iterator[RepairRequests]:
    """A pipeline that looks for requests until the block ends, or `over` is set."""
    requests, ended = RepairRequests(task, work, over), threading.Event()

    def loop() -> None:
        with live.lock(task.run_path, "pipeline"):
            while not ended.wait(0.05) and not over.is_set():
                requests.start_next()
            requests.join()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop)
        while not live.locked(task.run_path, "pipeline"):
            time.sleep(0.02)
        try:
            yield requests
        finally:
            ended.set()
            running.result()


def files(task: Task) -> list[str]:
    return sorted(one.name for one in (Path(task.run_path) / "repairs").iterdir() if one.name[0] != ".")


def test_the_command_gets_the_repair_and_its_steps(tmp_path: Path) -> None:
    task, asked, seen = TaskHome(tmp_path).task, list[Options](), list[tuple[str, int, int]]()

    def work(options: Options, steps: Steps) -> Outcome:
        asked.append(options)
        steps.more(2)
        steps.now("repairing s.t")
        time.sleep(0.5)
        return DONE

    with pipeline(task, work, threading.Event()):
        found = request_repair(task, WANTED, Steps(lambda *said: seen.append(said)))
    assert (asked, found, files(task)) == ([WANTED], DONE, [])
    assert ("repairing s.t", 0, 2) in seen


def test_an_error_of_the_repair_is_that_of_the_command(tmp_path: Path) -> None:
    task = TaskHome(tmp_path).task

    def work(_: Options, __: Steps) -> Outcome:
        raise ConfigError("no baseline of s.t yet", where="shop", hint="wait")

    with pipeline(task, work, threading.Event()), pytest.raises(ConfigError) as raised:
        request_repair(task, WANTED, Steps())
    assert raised.value.args == ("no baseline of s.t yet", "shop", "wait")


def test_a_task_that_ends_tells_the_command_what_to_do(tmp_path: Path) -> None:
    task, over = TaskHome(tmp_path).task, threading.Event()

    def work(_: Options, steps: Steps) -> Outcome:
        over.set()
        steps.waits()
        return DONE

    with pipeline(task, work, over), pytest.raises(TailraceError, match="has ended during") as raised:
        request_repair(task, WANTED, Steps())
    assert "run the command again" in str(raised.value)


def test_the_repair_of_a_command_that_is_gone_ends(tmp_path: Path) -> None:
    task, ended = TaskHome(tmp_path).task, threading.Event()

    def work(_: Options, steps: Steps) -> Outcome:
        try:
            (file,) = (Path(task.run_path) / "repairs").glob("*[0-9a-f].json")
            os.utime(file, (0, time.time() - LOST_S - 5))
            steps.now("repairing s.t")
        finally:
            ended.set()
        return DONE

    with pipeline(task, work, threading.Event()), pytest.raises(TailraceError, match="was silent for 10 s"):
        request_repair(task, WANTED, Steps())
    assert (ended.is_set(), files(task)) == (True, [])
