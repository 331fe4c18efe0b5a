"""Leases: which process has a half of a task, on any storage that the hosts of its processes share.

A lease is a file for each term, `<home>/run/<half>.lease.<term>`, which is made exclusively: of two that
want the same term one gets it. The greatest term holds. Its holder renews it by replacing the file, every
few seconds; a lease that has not changed for a whole period, measured by the clock of the waiting process,
is dead. No process trusts the clock of another host, nor one that can be set. Files of earlier terms stay
for a while, so that a process which slept finds its own overtaken.

JSON in the file: `host`, `kernel` (its boot id), `pid`, `id`, `since` (for people), `period` (seconds),
`beat` (counts up), `pids` (the namespace of the process id), `born` (when the process started), `released`.

docs/decisions/2026-11-22-leases.md says why this is enough.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from ..errors import LeaseLostError, StorageFullError
from ..lake.objects import Objects, pace
from .lease_files import (
    PERIOD_S,
    Holder,
    age,
    file_of,
    kernel,
    make,
    newest,
    newest_term,
    this_process,
    write,
)

logger = logging.getLogger("tailrace.lease")
_RENEWALS = 6
"""Renewals of a lease per period."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)  # keeps running while the machine is suspended


def clock() -> float:
    """Seconds on a clock that cannot be set, and that keeps running while the machine is suspended."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def refuse_others(folder: str, name: str, mine: str, term: int) -> None:
    """Raises LeaseLostError if a process with another `id` has the lease. It can be sent to other processes
    that work for the holder, whose lease had that `term` then."""
    if newest_term(folder, name) == term:
        return
    there = newest(folder, name)
    if there is not None and there.id != mine:
        raise LeaseLostError(
            f"{name} of this task has been taken over by {there.words()}",
            where=folder,
            hint="this process was not heard from for too long and stops; nothing it did counts twice",
        )


class Lease:
    """A lease of this process; a thread renews it until `release`.

    Args:
        folder, name: which.
        mine: the contents of its file.
    """

    def __init__(self, folder: str, name: str, mine: Holder) -> None:
        self._folder, self._name, self._mine = folder, name, mine
        self._until = clock() + mine.period
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renewing, daemon=True, name=f"lease {name}")
        self._thread.start()

    @property
    def term(self) -> int:
        """Its term."""
        return self._mine.term

    def check(self) -> None:
        """Raises LeaseLostError if another process has taken the lease, or may have by now because it could
        not be renewed. A lease that is late and was not taken is taken again."""
        refuse_others(self._folder, self._name, self._mine.id, self._mine.term)
        with self._lock:
            if clock() < self._until:
                return
            began, again = clock(), replace(self._mine, term=self._mine.term + 1, beat=0)
            try:
                made = make(self._folder, self._name, again)
            except (OSError, StorageFullError) as error:
                raise LeaseLostError(
                    f"the lease of {self._name} could not be renewed for {self._mine.period:.0f} s: {error}",
                    where=self._folder,
                    hint="make sure that the folder is writable, then start again; nothing is lost",
                ) from error
            if made:
                self._mine, self._until = again, began + again.period
                return
        refuse_others(self._folder, self._name, self._mine.id, self._mine.term)
        raise LeaseLostError(f"the lease of {self._name} was lost", where=self._folder)

    __call__ = check

    def __reduce__(self) -> tuple[object, ...]:
        # In other processes that work for the holder: they check whether it has the lease, and renew
        # nothing.
        return partial, (refuse_others, self._folder, self._name, self._mine.id, self._mine.term)

    def release(self) -> None:
        """Releases the lease: the next holder need not wait."""
        self._over.set()
        self._thread.join()
        with self._lock, suppress(OSError, StorageFullError):
            if newest_term(self._folder, self._name) == self.term:
                write(self._folder, self._name, replace(self._mine, released=True))

    def _renewing(self) -> None:
        while not self._over.wait(self._mine.period / _RENEWALS * min(pace(self._folder), 2.0)):
            # If it cannot be renewed, or is lost, `check` raises the error.
            with suppress(OSError, StorageFullError):
                self._renew()

    def _renew(self) -> None:
        with self._lock:
            began = clock()
            if began >= self._until:
                return
            self._mine = replace(self._mine, beat=self._mine.beat + 1)
            write(self._folder, self._name, self._mine)
            self._until = began + self._mine.period


def take(
    folder: str,
    name: str,
    refused: Callable[[Holder], Exception],
    *,
    patient: bool = True,
    locked: bool = True,
) -> Lease:
    """Takes a free lease.

    Args:
        folder, name: which.
        refused: returns the error to raise if another process has it.
        patient: waits for a period if its holder may be dead; False: it is refused then, too.
        locked: the caller has the operating system's lock on it, so no process under this kernel can have it.
    """
    while True:
        there = newest(folder, name)
        dead = there is None or there.released or there.ended or (there.here and locked)
        if there is not None and not dead and (not patient or alive(folder, name, wait=True)):
            raise refused(newest(folder, name) or there)
        mine = Holder(
            1 if there is None else there.term + 1, platform.node(), kernel(), os.getpid(), uuid.uuid4().hex,
            datetime.now(timezone.utc).isoformat(timespec="seconds"), PERIOD_S, 0, *this_process(),
        )  # fmt: skip
        if make(folder, name, mine):
            return Lease(folder, name, mine)
        if (there := newest(folder, name)) is not None and there.term >= mine.term and not there.released:
            raise refused(there)


_watched: dict[
    tuple[str, str], tuple[object, float, bool]
] = {}  # the lease as last seen, since when by our clock, and whether it looked alive at first


def alive(folder: str, name: str, *, wait: bool = False, guess: bool = False) -> bool:
    """Whether the holder of a lease, on another host, is alive: True until it was watched for a whole period
    without a change.

    Args:
        folder, name: which.
        wait: watch it until that is known.
        guess: at first sight go by the age of the file, as the storage's clock has it.
    """
    first = True
    while True:
        there = newest(folder, name)
        if there is None or there.released:
            return False
        if wait and first:
            logger.warning(
                "%s was last run by %s; waiting to see whether that process is still alive",
                name,
                there.words(),
            )
        if (written := Objects(folder).written(file_of(name, there.term))) is not None:
            now = (there, written)
            before = _watched.get((folder, name))
            if before is None or before[0] != now:
                if before is not None and not first:
                    return True  # it changed while we watched
                fresh = not guess or before is not None or age(folder, name, there.term) < 3 * there.period
                _watched[folder, name] = before = now, clock(), fresh
            if clock() - before[1] >= there.period * 1.1:
                return False
            if not wait:
                return before[2] or not guess
        first = False
        time.sleep(min(1.0, there.period / 10))
