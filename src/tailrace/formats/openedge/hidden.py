"""OpenEdge's tables that other formats pass over: those whose names begin with `_`, and dumps."""

from __future__ import annotations

from pathlib import Path

from ...errors import ConfigError
from ..folders import holds_files, kind_of, several_kinds
from .plain_names import is_dump, plain_name
from .tables import KNOWN


def hidden_tables(root: Path) -> list[Path]:
    """The files and folders in a folder that are tables though their names begin with `_`: those that have
    files themselves, and all folders with the name of one of OpenEdge's own tables.

    Raises:
        ConfigError: a folder has files of several kinds.
    """
    if not root.is_dir():
        return []
    found = [p for p in sorted(root.glob("_*")) if holds_files(p) and _is_one(p)]
    if mixed := next(filter(None, map(several_kinds, found)), None):
        raise ConfigError(mixed, where=str(root), hint="give a table's folder files of one kind")
    return found


def dumps_at(root: Path) -> list[Path]:
    """The `.cd` files at a path, in order; names that begin with `.` are passed over."""
    found = sorted(root.glob("[!.]*")) if root.is_dir() else [root] if root.is_file() else []
    return [p for p in found if is_dump(p.name)]


def _is_one(place: Path) -> bool:
    """Not a folder of folders, such as `_pending`, which `convert` writes."""
    if not place.is_dir() or kind_of(place) == "delta" or plain_name(place.name) in KNOWN:
        return True
    return any(p.is_file() and kind_of(p) for p in place.glob("[!_.]*"))
