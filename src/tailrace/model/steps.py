"""Progress of long commands: total steps, finished steps, and the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Steps:
    """The steps of a command; threads may share it.

    Attributes:
        draw: called with the current step (empty: unchanged), finished steps, and total steps.

    >>> steps = Steps(lambda *said: print(*said))
    >>> steps.more(2)
     0 2
    >>> steps.now("reading s.t")
    reading s.t 0 2
    >>> steps.done()
     1 2
    """

    draw: Callable[[str, int, int], None] = lambda *_: None
    _done: int = 0
    _all: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def more(self, steps: int) -> None:
        """Adds steps to the total."""
        self._tell("", 0, steps)

    def now(self, words: str) -> None:
        """Sets the current step."""
        self._tell(words, 0, 0)

    def waits(self) -> None:
        """Reports no progress, so that `draw` can end the command with an error."""
        self._tell("", 0, 0)

    def done(self, steps: int = 1) -> None:
        """Marks steps as done."""
        self._tell("", steps, 0)

    def _tell(self, words: str, done: int, more: int) -> None:
        with self._lock:
            self._done, self._all = self._done + done, self._all + more
            self.draw(words, self._done, self._all)
