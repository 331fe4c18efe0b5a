"""The log of a child process: lines in a file that is rotated when it is full.

`capture.log` is the current file, `capture.log.1` the one before it, and so on; the oldest is deleted. Lines
that cannot be written (the disk is full) go to standard error: the process's output is always read.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

FILE_BYTES, FILES = 5 << 20, 5
_LINE_BYTES = 64 << 10
LAST = 200
"""The number of a process's last lines that are kept for error messages."""


class ProcessLog:
    """Writes the output of processes, one process after the other."""

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self.path = path
        self._size, self._files = file_bytes, files
        self._copying: threading.Thread | None = None
        self._full = False
        self._last: deque[str] = deque(maxlen=LAST)

    def take(self, stream: IO[bytes], also: Callable[[str], object] | None = None) -> None:
        """Writes a process's lines until it ends; calls `also` with each."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._last.clear()
        work = (stream, also or (lambda _: None))
        self._copying = threading.Thread(target=self._copy, args=work, daemon=True, name="process log")
        self._copying.start()

    def last_lines(self, lines: int) -> str:
        """Returns the last lines of the process that ended last."""
        if self._copying is not None:
            self._copying.join(5)
        return "\n".join("\n".join(self._last).strip().splitlines()[-lines:])

    def _copy(self, stream: IO[bytes], also: Callable[[str], object]) -> None:
        handler = RotatingFileHandler(
            self.path, maxBytes=self._size, backupCount=self._files - 1, encoding="utf-8", errors="replace",
            delay=True,
        )  # fmt: skip
        handler.handleError = self._missed  # type: ignore[method-assign]
        with stream:
            while line := stream.readline(_LINE_BYTES):  # a line without an end is read in pieces
                words = line.decode(errors="replace").rstrip("\n")
                self._last.append(words)
                handler.emit(logging.makeLogRecord({"msg": words}))
                also(f"{words}\n")
        try:
            handler.close()
        except OSError:
            self._missed(None)

    def _missed(self, record: logging.LogRecord | None) -> None:
        """Prints a line that could not be written, at first with the reason. Called in an `except` block."""
        if not self._full:
            self._full = True
            message = f"{self.path} cannot be written ({sys.exc_info()[1]}): missing lines are printed here"
            sys.stderr.write(f"{message}\n")
        if record is not None:
            sys.stderr.write(f"{record.getMessage()}\n")
