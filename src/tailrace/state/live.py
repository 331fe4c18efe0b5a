"""Live state: what the processes of a task are doing now, as small JSON files that are replaced whole.

Files in `<home>/run/`, one a process; a reader sees one whole state or the one before, never a mix:

- `capture.json`: `state` (starting, running, reconnecting, stopped), `pid`, `position` (hex, end of the last
  LOG commit), `records`, `transactions`, `bytes`, `commits`, `commit_seconds` (since the process
  started), `rate` (records a second), `read_at`,
  `lag_bytes`, `lag_seconds`, `retained_bytes` and `left_bytes` (`capture_state`), `baselines` (table ->
  state, parts, parts_done, rows), `tables`, `message`, `since` and `attempts` (of reconnecting), `ended`,
  `at`;
- `pipeline.json`: `state` (running, drained, stopped), what store and apply did last, `commands` (the newest
  command for a table that apply follows), `ended`, `at`;
- `parts/`: parts of baselines that capture has Spark's tasks read (`capture.part_requests`);
- `repairs/`: repairs that `tailrace validate --repair` has the pipeline make (`runtime.repair_requests`).

`ended` says which error ended the process (none: it ended as asked, or was killed), `at` is when the file
was written (UTC, ISO 8601). Nothing here is needed for correctness: progress is in the tables. Which
process has a half of a task its lease says (`leases`); on one machine a lock of the operating system on
`<name>.lock`, which ends with its process, shows at once whether it runs.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from ..errors import ConfigError, LeaseLostError, TailraceError, room
from ..lake import guards
from ..lake.storage import is_remote, make_folder
from . import leases
from .lease_files import Holder, age, newest
from .leases import Lease


@contextmanager
def lock(folder: str | Path, name: str, *, patient: bool = True) -> Iterator[Lease]:
    """Holds the half of that name for this process until the block ends; every commit inside is made under
    its lease (`guards`). If a process on this machine dies, the half is free at once: the operating system
    releases its lock. One on another machine is first watched for `leases.PERIOD_S` seconds, unless not
    `patient`.

    Raises:
        ConfigError: another process has it: the same half of the same task runs already.
    """
    home = str(folder)
    with _system_lock(home, name) as locked:
        with room(home):
            lease = leases.take(home, name, partial(_runs, home, name), patient=patient, locked=locked)
        try:
            with guards.under(lease):
                yield lease
        finally:
            lease.release()


@contextmanager
def _system_lock(home: str, name: str) -> Iterator[bool]:
    """Holds the operating system's lock for a half within the block; False if the storage has no locks.

    Raises:
        ConfigError: another process has it.
    """
    if is_remote(home):
        yield False
        return
    make_folder(home)
    with Path(home, f"{name}.lock").open("a+") as file:
        locked = _take(file)
        if locked is False:
            raise _runs(home, name, newest(home, name))
        yield bool(locked)


@contextmanager
def ending(tell: Callable[[str], None]) -> Iterator[None]:
    """Reports an error that ends the block, except when another process has the half by now."""
    try:
        yield
    except LeaseLostError:
        raise
    except Exception as error:
        words = str(error)
        if isinstance(error, TailraceError):
            words = f"{error.where}: {error.what}" if error.where else error.what
        with suppress(TailraceError, OSError):  # what ended it is what matters
            tell(words)
        raise


def refuse(folder: str | Path, name: str, *, within: float = 0.0) -> None:
    """Raises ConfigError if another process holds the half of that name and does not end `within` that many
    seconds; takes nothing. A silent holder on another host is watched, as in `lock`."""
    home, end = str(folder), time.monotonic() + within
    while locked(folder, name):
        there = newest(home, name)
        if there and not there.here and not leases.alive(home, name, wait=True):
            return
        if time.monotonic() >= end or (there and not there.here):
            raise _runs(home, name, there)
        time.sleep(0.05)


def unheard_s(folder: str | Path, name: str) -> float:
    """Seconds since the holder of a half was last heard of, if its lease has run out since: it may be dead. 0
    of one on this machine: the operating system's lock shows it at once."""
    there = newest(str(folder), name)
    if there is None or there.here:
        return 0.0
    seconds = age(str(folder), name, there.term)
    return seconds if seconds > there.period else 0.0


def running(folder: str | Path, names: Iterable[str]) -> TailraceError | None:
    """Error of `refuse` for the first of these halves that another process holds, at first sight."""
    home = str(folder)
    return next((_runs(home, n, newest(home, n)) for n in names if locked(home, n)), None)


def _runs(home: str, name: str, there: Holder | None) -> ConfigError:
    return ConfigError(
        f"{name} of this task is already running, as {there.words() if there else 'an unknown process'}",
        where=home,
        hint="stop that process first, or give this task another name and home",
    )


def _take(file: IO[str]) -> bool | None:
    """Takes the operating system's lock; None if the file system has no locks. Retries for half a second,
    because `locked` holds the lock for an instant."""
    for _ in range(10):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            return None
    return False


def locked(folder: str | Path, name: str, *, sure: bool = False) -> bool:
    """Whether a living process, on this or another host, holds the half of that name.

    Of a process on another host that is unknown at first sight. With `sure` it counts as alive until this
    process has watched it for a whole period; else the age of its lease decides, by the storage's clock.
    """
    free = _is_free(str(folder), name)
    if free is False:
        return True
    there = newest(str(folder), name)
    if there is None or there.released or there.ended or (free and there.here):
        return False
    return bool(there.alive) or leases.alive(str(folder), name, guess=not sure)


def _is_free(folder: str, name: str) -> bool | None:
    """Whether the operating system's lock is free; None if it is unknown."""
    if is_remote(folder):
        return None
    try:
        # Shared: two callers do not mistake each other for the holder.
        with Path(folder, f"{name}.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except OSError:
        return None
