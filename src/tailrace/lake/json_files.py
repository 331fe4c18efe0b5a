"""Small JSON files that are replaced as a whole, so that readers never see a partial one."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import StorageFullError, room


def write(folder: str | Path, name: str, state: Mapping[str, Any]) -> None:
    """Replaces the state with that name durably.

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
    # One draft per process, because several processes may write the same name.
    draft = home / f".{name}.{os.getpid()}.json"
    try:
        with room(str(home)):
            with draft.open("w") as file:
                json.dump({**state, "at": at}, file, default=str)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(home / f"{name}.json")
            sync_folder(home)
    except StorageFullError:
        draft.unlink(missing_ok=True)
        raise


def read(folder: str | Path, name: str) -> dict[str, Any] | None:
    """Returns the state with that name; None if it was never written."""
    try:
        text = (Path(folder) / f"{name}.json").read_text()
    except FileNotFoundError:
        return None
    state: dict[str, Any] = json.loads(text)
    return state


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
