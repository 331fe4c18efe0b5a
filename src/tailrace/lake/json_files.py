"""Small JSON files that are replaced as a whole, so that readers never see a partial one."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .objects import Objects


def write(folder: str | Path, name: str, state: Mapping[str, Any]) -> None:
    """Replaces the state with that name durably.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> write(folder, "capture", {"state": "running", "rate": 2.5})
    >>> found = read(folder, "capture")
    >>> found["state"], found["rate"], sorted(found)
    ('running', 2.5, ['at', 'rate', 'state'])
    """
    at = dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
    Objects(folder).write(f"{name}.json", json.dumps({**state, "at": at}, default=str).encode())


def read(folder: str | Path, name: str) -> dict[str, Any] | None:
    """Returns the state with that name; None if it was never written."""
    contents = Objects(folder).read(f"{name}.json")
    if contents is None:
        return None
    state: dict[str, Any] = json.loads(contents)
    return state
