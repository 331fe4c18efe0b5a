"""Folders with all that is in them: local ones, and those of object stores, which have no folders, only files
whose names begin alike."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.fs

from .objects import Objects
from .storage import bucket_of, filesystem, is_remote, join

_COMMITS = "_delta_log"


def files(folder: str) -> Iterator[tuple[str, int]]:
    """Yields the addresses and bytes of all files in a folder and its folders; those removed meanwhile may be
    missing."""
    if not is_remote(folder):
        for root, _, names in os.walk(folder):
            for path in (Path(root, name) for name in names):
                with suppress(FileNotFoundError):
                    yield str(path), path.stat().st_size
        return
    for name, size in Objects(folder).below():
        yield join(folder, name), size


def is_folder(folder: str) -> bool:
    """Whether a local folder exists; of an object store: whether a file is in it."""
    return next(files(folder), None) is not None if is_remote(folder) else Path(folder).is_dir()


def subfolders(folder: str) -> list[str]:
    """Returns the names of the folders directly in a folder."""
    if is_remote(folder):
        return Objects(folder).folders()
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(one.name for one in Path(folder).iterdir() if one.is_dir())
    return []


def remove_folder(folder: str) -> None:
    """Removes a folder with its files, if it exists. The commits of a table go last, so that a call that is
    repeated still finds the table."""
    if not is_remote(folder):
        with suppress(FileNotFoundError):
            for one in sorted(Path(folder).iterdir(), key=lambda one: one.name == _COMMITS):
                shutil.rmtree(one) if one.is_dir() else one.unlink()
            Path(folder).rmdir()
        return
    there = Objects(folder)
    there.delete_all(sorted((name for name, _ in there.below()), key=lambda name: f"{_COMMITS}/" in name))


def copy_folder(folder: str, to: str) -> None:
    """Copies the files of a folder of an object store to another one in the same bucket, on the server; a
    table's commits last, in order, so that readers never see a commit without its files."""
    bucket = bucket_of(folder)
    before, after = (one.removeprefix(f"{bucket}/") for one in (folder, to))
    names = sorted((f"{_COMMITS}/" in name, name) for name, _ in Objects(folder).below())
    for _, name in names:
        Objects(bucket).copy(join(before, name), join(after, name))


def last_change(folder: str) -> float:
    """Returns when the newest file of a folder was written (seconds since 1970), or when a local folder
    without files was made; now if there is neither."""
    fs, path = filesystem(folder)
    found = fs.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=True))
    times = [one.mtime.timestamp() for one in [*found, fs.get_file_info(path)] if one.mtime is not None]
    return max(times, default=time.time())
