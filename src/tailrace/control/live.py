"""Live state: what the processes of a task are doing now, as small JSON files that are replaced whole.

Files in `<home>/run/`, one a process; a reader sees one whole state or the one before, never a mix:

- `capture.json`: `state` (starting, running, reconnecting, stopped), `pid`, `position` (hex, end of the last
  LOG commit), `records`, `transactions`, `commits` (since the process started), `rate` (records a second),
  `lag_bytes`, `lag_seconds`, `baselines` (table -> state, parts, parts_done, rows), `tables`, `message`,
  `at`;
- `pipeline.json`: `state` (running, drained, stopped), what store and apply did last, `orders` (the newest
  order for a table that apply goes by), `at`;
- `source.json`: which server, database and slot the task was made with.

`at` is when the file was written (UTC, ISO 8601). Nothing here is needed for correctness: progress stands in
the tables. A `<name>.lock` beside each says, by a lock of the operating system, whether its process lives.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import ConfigError


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
    with draft.open("w") as file:
        json.dump({**state, "at": at}, file, default=str)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(home / f"{name}.json")
    _sync_folder(home)


def read(folder: str | Path, name: str) -> dict[str, Any] | None:
    """The state of that name; None when nothing was written yet."""
    try:
        text = (Path(folder) / f"{name}.json").read_text()
    except FileNotFoundError:
        return None
    state: dict[str, Any] = json.loads(text)
    return state


@contextmanager
def lock(folder: str | Path, name: str) -> Iterator[None]:
    """Holds the lock of that name; the operating system drops it when the process ends, however it ends.

    Raises:
        ConfigError: another process holds it: the same half of the same task runs already.
    """
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    # Appending keeps the holder's number in the file when we do not get the lock.
    with (home / f"{name}.lock").open("a+") as file:
        if not _take(file):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ConfigError(
                f"{name} of this task runs already, as process {holder}",
                where=str(home),
                hint="stop that process first, or give this task a home of its own",
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(file: IO[str]) -> bool:
    """Takes the lock; patient for half a second, because an asker (`locked`) holds it for an instant."""
    for _ in range(10):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def locked(folder: str | Path, name: str) -> bool:
    """Whether a living process holds the lock of that name."""
    try:
        # Shared: two askers do not take each other for the holder.
        with (Path(folder) / f"{name}.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _sync_folder(home: Path) -> None:
    """Makes the rename itself survive a power cut."""
    handle = os.open(home, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
