"""Whether anything has changed in the home of a task that is in an object store, by one request.

After every commit to the tables of a home (LOG, the relation history, control tables), one small file,
`run/changed`, gets another content. A process that checks that file need not check each table: while the file
is the same, cached tables are current. If a process ends between a commit and the file, others see the commit
with the next one, or after `FULL_S` seconds.

A local home has no such file: there, the check of a table takes microseconds.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress

from .objects import Objects
from .storage import is_remote, join, within

LOOK_S, FULL_S = 2.0, 120.0
"""Seconds between two checks of the file, and the longest time for which cached tables count as current."""
_TABLES = ("control", "log", "relations")
"""The folders in a home whose tables are cached in this way."""
_FILE = "changed"


class _Home:
    def __init__(self, address: str) -> None:
        self._files = Objects(join(address, "run"))
        self._folders = [join(address, name) for name in _TABLES]
        self._lock = threading.Lock()
        self._seen: object = None
        self._looked = self._renewed = -FULL_S
        self._epoch = 0

    def has(self, table: str) -> bool:
        return any(within(table, folder) for folder in self._folders)

    def epoch(self) -> int:
        with self._lock:
            now = time.monotonic()
            if now - self._looked < LOOK_S:
                return self._epoch
            seen = self._files.written(_FILE)
            if seen != self._seen or now - self._renewed > FULL_S:
                self._seen, self._renewed, self._epoch = seen, now, self._epoch + 1
            self._looked = now
            return self._epoch

    def check_now(self) -> None:
        with self._lock:
            self._looked = -FULL_S

    def tell(self) -> None:
        with self._lock:
            self._epoch += 1
        self._files.write(_FILE, uuid.uuid4().bytes)


_homes: dict[str, _Home] = {}
_opened_apart: set[str] = set()


def follow(home: str) -> None:
    """Makes a task's home known to this process."""
    if is_remote(home):
        _homes.setdefault(home, _Home(home))


def check_now() -> None:
    """Makes the next use of a cached table check the file, however recent the last check is."""
    for home in _homes.values():
        home.check_now()


def epoch(table: str) -> int | None:
    """Returns a number that grows when anything in the home of a table may have changed; None if the table
    itself has to be checked."""
    home = _home(table)
    if home is None or table in _opened_apart:
        _opened_apart.discard(table)
        return None
    return home.epoch()


def opened_apart(table: str) -> None:
    """Records that a table was opened to be changed by other means than a commit of `lake.delta`."""
    if _home(table) is not None:
        _opened_apart.add(table)


def tell(table: str) -> None:
    """Lets other processes know of a commit to a table. If the store does not answer, they see it later."""
    if (home := _home(table)) is not None:
        with suppress(OSError):
            home.tell()


def _home(table: str) -> _Home | None:
    return next((one for one in _homes.values() if one.has(table)), None) if _homes else None
