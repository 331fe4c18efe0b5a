"""`tailrace run`: capture as a child process, store and apply in this one.

The child dies with its parent (it watches for that) and the parent ends when the child cannot go on. A child
that was killed is started again: what it had not committed is captured again, the same.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from .checks import before_run
from .control.task import Task, load
from .errors import TailraceError
from .pipeline import Pipeline
from .spark import session

logger = logging.getLogger("tailrace.run")
RESTARTS = 5
CALM_S = 60.0
"""A child that lived this long before it was killed does not count towards RESTARTS."""


class CaptureChild:
    """The capture process of a task, started again when it is killed, ended when `stop` is set."""

    def __init__(self, task_file: Path, task: Task, *, once: bool) -> None:
        self._file, self._once = task_file, once
        self.log = Path(task.run_path) / "capture.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0
        self._began = 0.0

    def start(self) -> None:
        """Starts the process; its words go to `<home>/run/capture.log`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tailrace", "capture", str(self._file), "--parent", str(os.getpid())]
        self._began = time.monotonic()
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command + (["--once"] if self._once else []), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def watch(self, stop: threading.Event) -> None:
        """Returns when the child is done (`once`) or `stop` is set; TailraceError when it cannot go on."""
        while True:
            code = self._process.poll() if self._process else None
            if code is None:
                if stop.wait(0.1):
                    self.end()
                    return
            elif code == 0:
                return
            elif code < 0 and not stop.is_set() and self._may_restart():
                logger.warning("capture was killed (signal %d), starting it again", -code)
                self.start()
            else:
                raise TailraceError(
                    f"capture ended with code {code}", where=str(self.log), hint=self._last_words() or None
                )

    def _may_restart(self) -> bool:
        self._deaths = 1 if time.monotonic() - self._began > CALM_S else self._deaths + 1
        return self._deaths <= RESTARTS

    def end(self) -> None:
        """Asks the child to commit what it has and stop; kills it when it has not after 20 seconds."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").strip().splitlines()[-12:])


def run(
    task_file: Path,
    *,
    once: bool,
    stop: threading.Event,
    screen: Callable[[Task, threading.Event], None] | None = None,
) -> None:
    """Runs a task until `stop` is set, or with `once` until the source's present is in the targets."""
    task = load(task_file)
    before_run(task, lambda: session(f"tailrace {task.name}", conf=task.spark))
    child = CaptureChild(task_file, task, once=once)
    child.start()
    over = threading.Event()
    with ThreadPoolExecutor(3, thread_name_prefix="tailrace") as pool:
        watching = pool.submit(_watch, child, stop, once)
        drawing = pool.submit(screen, task, over) if screen else None
        try:
            spark = session(f"tailrace {task.name}", conf=task.spark)
            pipeline = Pipeline(task, spark, stop=stop)
            if once:
                watching.result()
                if not stop.is_set():
                    pipeline.drain()
            else:
                pipeline.run()
        finally:
            stop.set()
            over.set()
            child.end()
            if drawing is not None:
                drawing.result()
        watching.result()


def _watch(child: CaptureChild, stop: threading.Event, once: bool) -> None:
    try:
        child.watch(stop)
    except TailraceError:
        stop.set()
        raise
    if not once:
        stop.set()


def stop_on_signals(stop: threading.Event) -> None:
    """Ctrl-C and SIGTERM set `stop`; a second one ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
