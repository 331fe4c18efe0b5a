"""Live state: what the processes of a task are doing now, as small JSON files that are replaced whole.

Files in `<home>/run/`, one a process; a reader sees one whole state or the one before, never a mix:

- `capture.json`: `state` (starting, running, reconnecting, stopped), `pid`, `position` (hex, end of the last
  LOG commit), `records`, `transactions`, `bytes`, `commits`, `commit_seconds` (since the process
  started), `rate` (records a second), `read_at`,
  `lag_bytes`, `lag_seconds`, `retained_bytes` and `left_bytes` (`capture_state`), `baselines` (table ->
  state, parts, parts_done, rows), `tables`, `message`, `since` and `attempts` (of reconnecting), `at`;
- `pipeline.json`: `state` (running, drained, stopped), what store and apply did last, `orders` (the newest
  order for a table that apply goes by), `at`.

`at` is when the file was written (UTC, ISO 8601). Nothing here is needed for correctness: progress stands in
the tables. Which process has a half of a task its lease says (`leases`); on one machine a lock of the
operating system on `<name>.lock`, which goes with its process, tells at once whether it lives.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from ..errors import ConfigError, StorageFullError, room
from ..lake import guards
from . import leases
from .lease_files import Holder, newest
from .leases import Lease


def write(folder: str | Path, name: str, state: Mapping[str, Any]) -> None:
    """Replaces the state of that name; on disk when this returns.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> write(folder, "capture", {"state": "running", "rate": 2.5})
    >>> found = read(folder, "capture")
    >>> found["state"], found["rate"], sorted(found)
    ('running', 2.5, ['at', 'rate', 'state'])
    """
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    at = dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
    # Named by process: two that write the same name must not share a draft.
    draft = home / f".{name}.{os.getpid()}.json"
    try:
        with room(str(home)):
            with draft.open("w") as file:
                json.dump({**state, "at": at}, file, default=str)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(home / f"{name}.json")
            _sync_folder(home)
    except StorageFullError:
        draft.unlink(missing_ok=True)
        raise


def read(folder: str | Path, name: str) -> dict[str, Any] | None:
    """The state of that name; None when nothing was written yet."""
    try:
        text = (Path(folder) / f"{name}.json").read_text()
    except FileNotFoundError:
        return None
    state: dict[str, Any] = json.loads(text)
    return state


@contextmanager
def lock(folder: str | Path, name: str, *, patient: bool = True) -> Iterator[Lease]:
    """Has the half of that name for this process until the block ends; every commit inside is made under its
    lease (`guards`). A process that dies on this machine leaves it free at once: the operating system drops
    its lock. One on another machine is watched for `leases.PERIOD_S` seconds first, unless not `patient`.

    Raises:
        ConfigError: another process has it: the same half of the same task runs already.
    """
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.lock").open("a+") as file:
        locked = _take(file)
        if locked is False:
            raise _runs(home, name, newest(home, name))
        with room(str(home)):
            lease = leases.take(home, name, partial(_runs, home, name), patient=patient, locked=bool(locked))
        try:
            with guards.under(lease):
                yield lease
        finally:
            lease.release()


def refuse(folder: str | Path, name: str, *, within: float = 0.0) -> None:
    """Raises ConfigError when another process has the half of that name, and does not end `within` so many
    seconds; takes nothing. One on another host that does not say anything is watched, as `lock` does."""
    home, end = Path(folder), time.monotonic() + within
    while locked(folder, name):
        there = newest(home, name)
        if there and not there.here and not leases.alive(home, name, wait=True):
            return
        if time.monotonic() >= end or (there and not there.here):
            raise _runs(home, name, there)
        time.sleep(0.05)


def _runs(home: Path, name: str, there: Holder | None) -> ConfigError:
    return ConfigError(
        f"{name} of this task runs already, as {there.words() if there else 'an unknown process'}",
        where=str(home),
        hint="stop that process first, or give this task a home of its own",
    )


def _take(file: IO[str]) -> bool | None:
    """Takes the operating system's lock; None where the file system has none. Patient for half a second,
    because an asker (`locked`) holds it for an instant."""
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
    """Whether a living process, here or on another host, has the half of that name.

    Of another host nobody can tell at first sight. With `sure` it counts as alive until this process has
    watched it for a whole period; else the age of its lease decides, as the storage's clock has it.
    """
    free: bool | None = None
    try:
        # Shared: two askers do not take each other for the holder.
        with (Path(folder) / f"{name}.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            free = True
    except FileNotFoundError:
        pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    there = newest(Path(folder), name)
    if there is None or there.released or (free and there.here):
        return False
    return leases.alive(Path(folder), name, guess=not sure)


def _sync_folder(home: Path) -> None:
    """Makes the rename itself survive a power cut."""
    handle = os.open(home, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
