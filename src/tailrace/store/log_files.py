"""Finds the files of LOG that are still to be stored, in order, and divides them into batches.

One commit of LOG is one file with whole transactions, so a batch of files has whole transactions, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..lake import delta as lake
from ..lake import news
from ..lake.opened import open_table
from ..model.positions import order_key
from .kept import number, spans

LOOK_EVERY_S = 5.0
"""Seconds between two checks of LOG's newest version while its next commit is not found: it may have been
removed."""


@dataclass(frozen=True)
class LogFile:
    """A file of LOG: its path in LOG's folder, its bytes, its first and last change number (-1: unknown), and
    the number of its records (0: unknown)."""

    path: str
    size: int
    low: int = -1
    high: int = -1
    records: int = 0


class LogFiles:
    """The files of LOG after a change number.

    A check for new files reads the next commit's file, or finds that it does not exist: that takes
    microseconds, whatever LOG's size. If commits were removed before they were read, the files that LOG has
    now count.

    Args:
        log: LOG's path.
        after: records up to this change number are stored.
    """

    def __init__(self, log: str, after: int) -> None:
        self._log = log
        self._fs, folder = lake.filesystem(log)
        self._commits = f"{folder}/_delta_log"
        self._waiting: list[LogFile] = []
        self._epoch: int | None = None
        self._list_files(after)

    def batch(self, after: int, max_bytes: int) -> list[LogFile]:
        """Returns the files of the next batch, in order; empty if there is nothing new.

        Args:
            after: records up to this change number are stored by now.
            max_bytes: the maximum size of the batch, which has at least one file.
        """
        self._read_commits(after)
        self._waiting = [f for f in self._waiting if f.high < 0 or f.high > after]
        taken, size = 0, 0
        for file in self._waiting:
            if taken and size + file.size > max_bytes:
                break
            taken, size = taken + 1, size + file.size
        found, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return found

    def _list_files(self, after: int) -> None:
        delta = open_table(self._log)
        self._version, self._checked_at = delta.version(), time.monotonic()
        found = (LogFile(s.path, s.size, s.low, s.high, s.rows) for s in spans(delta, "CHANGE_SEQ"))
        self._waiting = sorted((f for f in found if f.high < 0 or f.high > after), key=lambda f: f.low)

    def _read_commits(self, after: int) -> None:
        epoch = news.epoch(self._log)
        if epoch is not None and epoch == self._epoch:
            return
        self._epoch = epoch
        while (text := self._commit(self._version + 1)) is not None:
            self._waiting.extend(_added(text))
            self._version += 1
            self._checked_at = time.monotonic()
        if time.monotonic() - self._checked_at > LOOK_EVERY_S:
            self._checked_at = time.monotonic()
            if order_key(lake.version(self._log)) > self._version:
                self._list_files(after)

    def _commit(self, version: int) -> str | None:
        try:
            with self._fs.open_input_stream(f"{self._commits}/{version:020}.json") as file:
                text: str = file.read().decode()
        except FileNotFoundError:
            return None
        return text


def _added(commit: str) -> Iterator[LogFile]:
    """Yields the files that a commit of LOG adds.

    >>> stats = {"minValues": {"CHANGE_SEQ": "0" * 34 + "3"}, "maxValues": {"CHANGE_SEQ": "0" * 34 + "9"}}
    >>> stats["numRecords"] = 7
    >>> add = {"path": "a.parquet", "size": 100, "dataChange": True, "stats": json.dumps(stats)}
    >>> list(_added(json.dumps({"commitInfo": {}}) + "\\n" + json.dumps({"add": add})))
    [LogFile(path='a.parquet', size=100, low=3, high=9, records=7)]
    """
    for line in commit.splitlines():
        add = json.loads(line).get("add")
        if add is not None and add.get("dataChange", True):
            stats = json.loads(add.get("stats") or "{}")
            low, high = (
                number(stats.get(bound, {}).get("CHANGE_SEQ")) for bound in ("minValues", "maxValues")
            )
            yield LogFile(add["path"], add["size"], low, high, stats.get("numRecords") or 0)
