"""Ctrl-C and SIGTERM: a running command finishes its current work; one that is still starting ends at
once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from ..config.logs import line

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable of a process that spark-submit started. A signal to spark-submit ends only its JVM;
this process notices that its parent has ended."""


def end(number: int, frame: FrameType | None = None) -> None:
    """Ends the process with the shell's exit code for a signal (Ctrl-C: 130), and one line of output."""
    sys.stderr.write(line("INFO", "stopped"))
    raise SystemExit(128 + number)


def end_on_interrupt() -> None:
    """Makes Ctrl-C end the process until `stop_on_signals` changes that."""
    signal.signal(signal.SIGINT, end)


def stop_on_signals(
    stop: threading.Event, *, starting: bool = False, child: bool = False
) -> Callable[[], None]:
    """Makes Ctrl-C and SIGTERM set `stop`; a second signal ends the process immediately, but not a
    `child`: Ctrl-C reaches the whole process group, and a child gets it again from its parent.

    With `starting`, the first signal does so too until the returned function is called: nothing checks
    `stop` while Spark or a connection starts.
    """
    works, received = threading.Event(), [0]
    if not starting:
        works.set()
    # A handler runs in the main thread wherever it is: also within `stop` itself, while its lock is held. So
    # it takes no lock; a thread that reads the pipe sets `stop`.
    read, write = os.pipe()
    threading.Thread(target=_set_when_read, args=(read, stop), daemon=True, name="signals").start()

    def handle(number: int, frame: FrameType | None) -> None:
        received[0] += 1
        # Evaluated before the thread at the other end of the pipe sets `stop`.
        again = received[0] > 1 or stop.is_set()
        ends = not works.is_set() or (again and not child)
        os.write(write, b".")
        if ends:
            end(number, frame)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    if SUBMITTED in os.environ:
        stop_with_parent(stop, os.getppid())
    return works.set


def _set_when_read(read: int, stop: threading.Event) -> None:
    os.read(read, 1)
    stop.set()


def stop_with_parent(stop: threading.Event, parent: int) -> None:
    """Sets `stop` when the process `parent`, which started this one, has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            if stop.wait(0.5):
                return
        stop.set()

    threading.Thread(target=watch, daemon=True, name="parent").start()
