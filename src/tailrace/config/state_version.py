"""The version of a task's state on disk: `<home>/control/version.json`, written when the state is created.

It increases when an older release could not read what a newer one writes. Every command that opens a task
refuses another version.
"""

from __future__ import annotations

from typing import Any

from .. import __version__
from ..errors import ConfigError
from ..lake import json_files
from ..lake.storage import join

VERSION = 1
_NAME = "version"


def check(home: str) -> bool:
    """Whether a task's home has a state; one of another version is refused.

    Raises:
        ConfigError: this release does not know the version, or it cannot be read.
    """
    folder = join(home, "control")
    found = _read(folder)
    if found is None:
        return False
    version = found.get("version")
    if not isinstance(version, int) or version < 1:
        raise _unreadable(folder)
    if version != VERSION:
        by = found.get("release")
        raise ConfigError(
            f"the task's state has version {version}; this is tailrace {__version__}, which supports "
            f"version {VERSION}",
            where=join(folder, "version.json"),
            hint=f"use the release that wrote it ({by})" if by else "use the release that wrote it",
        )
    return True


def begin(home: str) -> None:
    """Records the version of this release in a home that has no state yet; errors as `check`."""
    if not check(home):
        json_files.write(join(home, "control"), _NAME, {"version": VERSION, "release": __version__})


def _read(folder: str) -> dict[str, Any] | None:
    try:
        found = json_files.read(folder, _NAME)
    except ValueError:
        raise _unreadable(folder) from None
    if found is not None and not isinstance(found, dict):
        raise _unreadable(folder)
    return found


def _unreadable(folder: str) -> ConfigError:
    return ConfigError(
        "the version of the task's state cannot be read",
        where=join(folder, "version.json"),
        hint=f'restore it, or write {{"version": {VERSION}}} if tailrace {__version__} ran it last',
    )
