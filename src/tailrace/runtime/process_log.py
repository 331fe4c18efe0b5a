"""The log of a child process: lines in a file that is rotated when it is full.

`capture.log` is the one that is written to; `capture.log.1` came before it, and so on; the oldest is deleted.
What it cannot take (the disk is full) goes to standard error: the process is always listened to.
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
"""Lines of a process that its last words are taken from."""


class ProcessLog:
    """Writes what processes print, one process after the other."""

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self.path = path
        self._size, self._files = file_bytes, files
        self._taking: threading.Thread | None = None
        self._full = False
        self._last: deque[str] = deque(maxlen=LAST)

    def take(self, stream: IO[bytes], also: Callable[[str], object] | None = None) -> None:
        """Writes a process's lines until it ends; `also` is called with each, too."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._last.clear()
        work = (stream, also or (lambda _: None))
        self._taking = threading.Thread(target=self._copy, args=work, daemon=True, name="process log")
        self._taking.start()

    def last_words(self, lines: int) -> str:
        """The last lines of the process that ended last."""
        if self._taking is not None:
            self._taking.join(5)
        return "\n".join("\n".join(self._last).strip().splitlines()[-lines:])

    def _copy(self, stream: IO[bytes], also: Callable[[str], object]) -> None:
        handler = RotatingFileHandler(
            self.path, maxBytes=self._size, backupCount=self._files - 1, encoding="utf-8", errors="replace",
            delay=True,
        )  # fmt: skip
        handler.handleError = self._missed  # type: ignore[method-assign]
        with stream:
            while line := stream.readline(_LINE_BYTES):  # a line without an end arrives in pieces
                words = line.decode(errors="replace").rstrip("\n")
                self._last.append(words)
                handler.emit(logging.makeLogRecord({"msg": words}))
                also(f"{words}\n")
        try:
            handler.close()
        except OSError:
            self._missed(None)

    def _missed(self, record: logging.LogRecord | None) -> None:
        """Prints a line that the file did not take; the first time it says why. Called in its `except`."""
        if not self._full:
            self._full = True
            message = f"{self.path} cannot be written ({sys.exc_info()[1]}): what it misses is printed here"
            sys.stderr.write(f"{message}\n")
        if record is not None:
            sys.stderr.write(f"{record.getMessage()}\n")
