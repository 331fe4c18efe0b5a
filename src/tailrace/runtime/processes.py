"""`tailrace run`: capture as a child process, store and apply in this one.

The child ends when its parent does (it checks for that), and the parent ends when the child cannot continue.
A child that was killed is started again: it captures again what it had not committed, with the same result.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..capture.ddl_watch import DdlWatch
from ..capture.first_start import slot_hint
from ..capture.part_requests import reading_for_capture
from ..config import logs
from ..config.task import Task, load
from ..errors import TailraceError
from ..execution import BackgroundSession, counted, summary
from ..operate.checks import before_run
from ..state import live
from .metrics import Served
from .pipeline import Pipeline
from .process_log import LAST, ProcessLog
from .session import background_session

logger = logging.getLogger("tailrace.run")
RESTARTS = 5
ORPHAN_S = 10.0
"""Seconds that a capture process may outlive its killed parent."""
CALM_S = 60.0
"""If a child lived this many seconds before it was killed, it does not count towards RESTARTS."""


class CaptureChild:
    """The capture process of a task: restarted if it is killed, ended when `stop` is set."""

    def __init__(self, task_file: Path, task: Task, *, once: bool) -> None:
        self._file, self._once = task_file, once
        self.log = ProcessLog(Path(task.local_path) / "capture.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0
        self._began = 0.0
        self._ending = threading.Lock()

    def start(self) -> None:
        """Starts the process; its output goes to `<home>/run/capture.log`, and what concerns the operator
        also to standard error."""
        more = ["-v"] if logs.verbose() else []
        command = [sys.executable, "-m", "tailrace", *more, "capture", str(self._file)]
        command += ["--parent", str(os.getpid())]
        command += ["--once"] if self._once else []
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if self._process.stdout is not None:
            self.log.take(self._process.stdout, also=_write_shown)

    def watch(self, stop: threading.Event) -> None:
        """Waits until the child is done (`once`) or `stop` is set.

        Raises:
            TailraceError: the child cannot continue.
        """
        while True:
            code = self._process.poll() if self._process else None
            if code is None:
                if stop.wait(0.1):
                    self.end()
                    return
            elif code == 0 or stop.is_set():  # Ctrl-C also reaches the child
                return
            elif code < 0 and self._may_restart():
                logger.warning("capture was killed (signal %d), starting it again", -code)
                self.start()
            else:
                raise self._failure(code)

    def _failure(self, code: int) -> TailraceError:
        """Returns the child's own error, or one with its last lines if it reported none."""
        lines = self.log.last_lines(LAST).splitlines()
        if (said := logs.error_in(lines)) is not None:
            what, where, hint = said
            return TailraceError(f"capture ended: {what}", where=where or str(self.log.path), hint=hint)
        words = "\n".join(map(logs.text, lines[-12:]))
        return TailraceError(f"capture ended with code {code}", where=str(self.log.path), hint=words or None)

    def _may_restart(self) -> bool:
        self._deaths = 1 if time.monotonic() - self._began > CALM_S else self._deaths + 1
        return self._deaths <= RESTARTS

    def end(self) -> None:
        """Asks the child, once, to commit and stop; kills it if it still runs after 20 seconds."""
        with self._ending:  # a second request would end it at once
            if self._process is None or self._process.poll() is not None:
                return
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def run(
    task_file: Path,
    *,
    once: bool,
    stop: threading.Event,
    screen: Callable[[Task, threading.Event], None] | None = None,
    began: Callable[[], None] = lambda: None,
    watched: Served | None = None,
    spark: BackgroundSession | None = None,
) -> None:
    """Runs a task until `stop` is set, or with `once` until the source's current state is in the targets.

    Args:
        task_file: the task file.
        once: end when the source's current state is in the targets.
        stop: ends the task.
        screen: draws the state of the task until its event is set.
        began: called when everything has started; it checks `stop` from then on.
        watched: gets the pipeline's counters for metrics.
        spark: the session to use, if it was started already.
    """
    task = load(task_file)
    # Before anything is started. A capture process whose parent was just killed is about to end by itself.
    live.refuse(task.run_path, "pipeline")
    live.refuse(task.run_path, "capture", within=ORPHAN_S)
    if spark is None:
        spark = background_session(f"tailrace {task.name}", task.spark, task.shared_folders)
        spark.begin()
    before_run(task, lambda: spark.as_session)
    where = "a database" if task.target.database else task.target.path
    logs.event("task %s starts: home %s, target %s", task.name, task.home, where, task=task.name)
    child = CaptureChild(task_file, task, once=once)
    over, ended = threading.Event(), False
    threads = ThreadPoolExecutor(3, thread_name_prefix="tailrace")
    with slot_hint(task), reading_for_capture(task, spark), threads as pool:
        child.start()
        watching = pool.submit(_watch, child, stop, once)
        drawing = pool.submit(screen, task, over) if screen else None
        try:
            pipeline = Pipeline(task, spark.as_session, stop=stop)
            if watched is not None:
                watched.counted = pipeline.counted
            began()
            if once:
                watching.result()
                if ended := not stop.is_set():
                    # The policies waited for these changes.
                    pipeline.drain(then=DdlWatch(task).apply_policies)
            else:
                pipeline.run()
        finally:
            stop.set()
            over.set()
            child.end()
            if drawing is not None:
                drawing.result()
        watching.result()
    if said := summary(counted()):
        logs.event(said)
    logs.event("task %s has stopped%s", task.name, ", everything is applied" if ended else "", task=task.name)


def _write_shown(said: str) -> None:
    if logs.in_json() or logs.is_shown(said):
        sys.stderr.write(said)


def _watch(child: CaptureChild, stop: threading.Event, once: bool) -> None:
    try:
        child.watch(stop)
    except TailraceError:
        stop.set()
        raise
    if not once:
        stop.set()
