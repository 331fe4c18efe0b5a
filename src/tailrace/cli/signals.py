"""Ctrl-C and SIGTERM: a command that works ends what it is doing, one that still starts ends at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from ..config.logs import line


def end(number: int, frame: FrameType | None = None) -> None:
    """Ends the process with the code that shells have for a signal (Ctrl-C: 130), and one line."""
    sys.stderr.write(line("INFO", "stopped"))
    raise SystemExit(128 + number)


def end_on_interrupt() -> None:
    """Ctrl-C ends the process, until `stop_on_signals` says otherwise."""
    signal.signal(signal.SIGINT, end)


def stop_on_signals(stop: threading.Event, *, starting: bool = False) -> Callable[[], None]:
    """Ctrl-C and SIGTERM set `stop`; a second one ends the process at once.

    With `starting` the first one does, too, until the function that is given back is called: nothing that
    starts, Spark or a connection, looks at `stop`.
    """
    works, come = threading.Event(), [0]
    if not starting:
        works.set()
    # A handler runs in the main thread, wherever that is: also within `stop` itself, holding its lock. So it
    # takes no lock; a thread that reads the pipe sets `stop`.
    read, write = os.pipe()
    threading.Thread(target=_set_when_told, args=(read, stop), daemon=True, name="signals").start()

    def handle(number: int, frame: FrameType | None) -> None:
        come[0] += 1
        # Asked before the thread at the other end of the pipe sets `stop`.
        ends = come[0] > 1 or stop.is_set() or not works.is_set()
        os.write(write, b".")
        if ends:
            end(number, frame)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return works.set


def _set_when_told(read: int, stop: threading.Event) -> None:
    os.read(read, 1)
    stop.set()
