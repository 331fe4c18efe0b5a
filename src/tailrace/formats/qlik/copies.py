"""Files of full loads that were delivered twice: nothing in their rows tells it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import pyarrow.fs

from . import control
from .data_file import DataFile
from .layout import find_prefix
from .options import QlikOptions

_BLOCK = 1 << 20


def copies(
    fs: pyarrow.fs.FileSystem, root: str, files: Sequence[DataFile], options: QlikOptions
) -> dict[str, str]:
    """The full loads' files that are equal, byte for byte, to another one of their table -> that one. Files
    with DFMs that differ are no copies. Only files of one size are read."""
    loads = [f for f in files if find_prefix(f.names, options.prefix) is None and not _is_control(f)]
    sizes = fs.get_file_info([f"{root}/{f.path}" for f in loads])
    groups: dict[tuple[str, int], list[DataFile]] = {}
    for file, info in zip(loads, sizes, strict=True):
        groups.setdefault((options.source_of(file.folder) or file.folder, info.size), []).append(file)
    found: dict[str, str] = {}
    for group in groups.values():
        found |= _equal(fs, root, group)
    return found


def _is_control(file: DataFile) -> bool:
    return control.is_control(file.folder)


def _equal(fs: pyarrow.fs.FileSystem, root: str, group: Sequence[DataFile]) -> dict[str, str]:
    """The copies among files of one size."""
    ordered = sorted(group, key=lambda f: (f.meta is None, f.path))
    said = {f.path: f.meta.to_json() if f.meta else "" for f in ordered}
    times = Counter(said.values())
    kept: dict[str, list[str]] = {}
    found = {}
    for path, meta in said.items():
        if len(said) > 1 and (times[""] or times[meta] > 1):
            same = kept.setdefault(_digest(fs, f"{root}/{path}"), [])
            first = next((p for p in same if meta in ("", said[p])), None)
            if first is None:
                same.append(path)
            else:
                found[path] = first
    return found


def _digest(fs: pyarrow.fs.FileSystem, path: str) -> str:
    made = hashlib.blake2b()
    with fs.open_input_stream(path, compression=None) as stream:
        while block := stream.read(_BLOCK):
            made.update(block)
    return made.hexdigest()


__all__ = ["copies"]
