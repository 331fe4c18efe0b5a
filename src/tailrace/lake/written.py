"""Counts files, and bytes by table, that this process and its Spark tasks have committed to Delta tables."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .storage import filesystem


@dataclass(frozen=True)
class Written:
    """Committed files and bytes since the process started.

    Attributes:
        files: data files, and one file per commit.
        sizes: bytes of data files by table folder.
    """

    files: int
    sizes: Mapping[str, int]

    def since(self, before: Written) -> Written:
        """Returns the counts since an earlier count."""
        sizes = {k: size - before.sizes.get(k, 0) for k, size in self.sizes.items()}
        return Written(self.files - before.files, {k: size for k, size in sizes.items() if size})


_lock = threading.Lock()
_files, _sizes = 0, Counter[str]()


def add(table: str, sizes: list[int]) -> None:
    """Counts a commit of data files of these sizes (bytes) to a table."""
    add_all(Written(len(sizes) + 1, {filesystem(table)[1]: sum(sizes)}))


def add_all(there: Written) -> None:
    """Adds the counts of another process."""
    global _files  # noqa: PLW0603 - one count for each process
    with _lock:
        _files += there.files
        _sizes.update(there.sizes)


def total() -> Written:
    """Returns the counts so far."""
    with _lock:
        return Written(_files, dict(_sizes))
