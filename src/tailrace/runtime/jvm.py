"""The JVM that pyspark starts: it ends with this process, and does not change signal handling or output."""

from __future__ import annotations

import atexit
import logging
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


def reported_by_us(context: object) -> None:
    """Marks the end of the JVM as intended or already reported; otherwise pyspark prints a traceback too."""
    server = getattr(context, "_accumulatorServer", None)
    report = getattr(server, "handle_error", None)
    if server is None or report is None:
        return

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exc_info()[1], (EOFError, ConnectionError)):
            report(request, address)

    server.handle_error = handle_error


@contextmanager
def no_orphan() -> Iterator[None]:
    """Ends the JVM with this process, also if the process is interrupted while the JVM starts.

    The JVM would only notice the end of its input, and may hang during its start.
    """
    from pyspark import SparkContext

    try:
        yield
    except BaseException as error:
        gateway = getattr(SparkContext._gateway, "proc", None)
        frames = (frame.f_locals.get("proc") for frame, _ in traceback.walk_tb(error.__traceback__))
        for process in {one for one in (gateway, *frames) if isinstance(one, subprocess.Popen)}:
            process.kill()
            process.wait()
        raise
    atexit.register(_end, getattr(SparkContext._gateway, "proc", None))


def _end(jvm: subprocess.Popen[bytes] | None) -> None:
    if jvm is None or jvm.stdin is None:
        return
    # py4j's cleanup thread may call the JVM while it ends, and would log a traceback.
    logging.getLogger().addFilter(lambda record: record.msg != "Exception while sending command.")
    jvm.stdin.close()
    try:
        jvm.wait(10)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Keeps the handler of Ctrl-C; pyspark would replace it, and end the running command with a traceback."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
