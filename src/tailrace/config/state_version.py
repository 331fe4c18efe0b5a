"""The version of a task's state on disk: `<home>/control/version.json`, written when the state is created.

It goes up when an older release could no longer read what a newer one writes. Every command that opens a task
refuses a newer version; an older one can be read, and the pipeline brings it up when it starts (`upgrades`).

| version | what is new |
| --- | --- |
| 1 | none was written |
| 2 | `stored` and `applied` have totals (`rolling`) |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import ConfigError
from ..lake import json_files

VERSION = 2
_NAME = "version"


def of(home: str) -> int | None:
    """The version of the state in a task's home; None if there is no state.

    Raises:
        ConfigError: it has one that this release does not know, or none that can be read.
    """
    folder = Path(home)
    said = _said(folder)
    if said is None:
        return 1 if (folder / "log" / "_delta_log").is_dir() or (folder / "control").is_dir() else None
    version = said.get("version")
    if not isinstance(version, int) or version < 1:
        raise _unreadable(folder)
    if version > VERSION:
        by = said.get("release")
        raise ConfigError(
            f"the task's state has version {version}; this is tailrace {__version__}, which supports "
            f"versions up to {VERSION}",
            where=str(folder / "control" / "version.json"),
            hint=f"use the release that wrote it ({by}), or a later one" if by else "use a later release",
        )
    return version


def begin(home: str) -> int:
    """The version of a task's state, which is created now if it does not exist; see `of`."""
    version = of(home)
    if version is None:
        write(home)
        return VERSION
    return version


def write(home: str) -> None:
    """Records that the state has the version of this release."""
    json_files.write(Path(home) / "control", _NAME, {"version": VERSION, "release": __version__})


def _said(folder: Path) -> dict[str, Any] | None:
    try:
        said = json_files.read(folder / "control", _NAME)
    except ValueError:
        raise _unreadable(folder) from None
    if said is not None and not isinstance(said, dict):
        raise _unreadable(folder)
    return said


def _unreadable(folder: Path) -> ConfigError:
    return ConfigError(
        "the version of the task's state cannot be read",
        where=str(folder / "control" / "version.json"),
        hint=f'restore it, or write {{"version": {VERSION}}} if tailrace {__version__} ran it last',
    )
