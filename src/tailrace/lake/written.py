"""Counts files and bytes that this process has committed to Delta tables."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .parts import filesystem


@dataclass(frozen=True)
class Written:
    """Committed files and bytes since the process started.

    Attributes:
        files: data files, and one file per commit.
        sizes: bytes of data files by table folder.
    """

    files: int
    sizes: Mapping[str, int]


_lock = threading.Lock()
_files, _sizes = Counter[str](), Counter[str]()


def add(table: str, sizes: list[int]) -> None:
    """Counts a commit of data files of these sizes (bytes) to a table."""
    folder = filesystem(table)[1]
    with _lock:
        _files[folder] += len(sizes) + 1
        _sizes[folder] += sum(sizes)


def total() -> Written:
    """Returns the counts so far."""
    with _lock:
        return Written(_files.total(), dict(_sizes))
