"""Cache of open Delta tables.

Reading new commits costs half of reading a table's log again, and detecting their absence is one file
access. For small tables that are read as a whole, the rows are cached as well. A table is checked out by one
user at a time; another user opens it separately. An entry is reused only if the commit file of its version is
unchanged. A table that was removed and created again is opened again.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties

from ..model.positions import ChangeNumber
from .reading import dataset

MOST, ACTIONS = 600, 100_000
"""The maximum number of cached tables and of their files in total; least recently used ones are evicted. A
table takes 0.1 to 0.3 MB, and 0.6 MB per 1,000 files."""
KEPT_BYTES = 64 << 10
"""The maximum bytes of cached rows."""
Commit = tuple[int, int, int]
"""Identity of a commit's file: inode, modification time (ns), bytes."""


@dataclass
class _Open:
    """An open table.

    Attributes:
        commit: the file of its version's commit, when it was returned to the cache.
        hint: the file that names the newest checkpoint, at that time.
        actions: the number of files in the newest checkpoint.
        read: a version, columns (None: all), and their rows.
    """

    table: DeltaTable
    commit: Commit | None = None
    hint: Commit | None = None
    actions: int = 0
    read: tuple[int, tuple[str, ...] | None, pa.Table] | None = None

    def rows(self, columns: tuple[str, ...] | None) -> pa.Table:
        """Returns all rows of its version."""
        asked = self.table.version(), columns
        if self.read is None or self.read[:2] != asked:
            made = dataset(self.table, ranges=False).to_table(columns and list(columns))
            self.read = (*asked, made) if made.nbytes <= KEPT_BYTES else None
            return made
        return self.read[2]


class _Kept:
    """LRU cache of open tables that are not checked out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._actions = 0

    def get(self, path: str) -> _Open | None:
        """Returns a table without removing it."""
        with self._lock:
            return self._open.get(path)

    def take(self, path: str) -> _Open | None:
        """Removes and returns a table."""
        with self._lock:
            return self._drop(path)

    def give(self, path: str, one: _Open) -> None:
        """Adds a table, and evicts least recently used ones."""
        with self._lock:
            self._drop(path)
            self._open[path] = one
            self._actions += one.actions
            while len(self._open) > MOST or self._actions > ACTIONS:
                self._drop(next(iter(self._open)))

    def _drop(self, path: str) -> _Open | None:
        if (one := self._open.pop(path, None)) is not None:
            self._actions -= one.actions
        return one


_kept = _Kept()


@contextmanager
def opened(path: str) -> Iterator[DeltaTable]:
    """Yields a table at its newest version, for exclusive use.

    Raises:
        TableNotFoundError: there is no table.
    """
    with _lent(path) as one:
        yield one.table


def whole(path: str, columns: Sequence[str] | None = None) -> tuple[int, pa.Table]:
    """Returns the newest version of a small table, and all of its rows; errors as in `opened`."""
    with _lent(path) as one:
        return one.table.version(), one.rows(tuple(columns) if columns else None)


def is_kept(path: str) -> bool:
    """Returns whether a cached table still exists, by one file access."""
    one = _kept.get(path)
    return one is not None and _commit(path, one.table) == one.commit


@contextmanager
def _lent(path: str) -> Iterator[_Open]:
    one = _taken(path) or _Open(DeltaTable(path))
    yield one  # after an error, the table is not cached
    if (commit := _commit(path, one.table)) is not None:
        hint = _stat(_hint_file(path))
        newest, one.actions = _checkpoint(path)
        one.commit, one.hint = commit, hint if newest is None or newest <= one.table.version() else None
        _kept.give(path, one)


def after_commit(table: DeltaTable) -> PostCommitHookProperties:
    """Returns delta-rs's actions after the next commit to an open table: a checkpoint if one is due.

    Expired commits are searched only after each hundredth commit, because this lists the whole log.
    """
    due = int(table.version()) % 100 == 99
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=due)


def reached(table: DeltaTable, app_id: str) -> ChangeNumber | None:
    """Returns the progress of an application in an open table; None if it has none."""
    found = table.transaction_version(app_id)
    return None if found is None else ChangeNumber(found)


def _taken(path: str) -> _Open | None:
    """Returns a cached table, updated to the newest version; None if it is not cached or was replaced."""
    one = _kept.take(path)
    if one is None or _commit(path, one.table) != one.commit:
        return None
    try:
        if _commit_file(path, one.table.version() + 1).exists():
            one.table.update_incremental()
        elif one.hint != _stat(_hint_file(path)):
            return None  # the commits after its version may have been removed (`thinning`)
    except Exception:  # noqa: BLE001 - opening the table again raises the error, if there is one
        return None
    return one


def _commit(path: str, table: DeltaTable) -> Commit | None:
    """Returns the identity of the commit file of a table's version; None if it is remote or was removed."""
    return _stat(_commit_file(path, table.version()))


def _stat(file: Path) -> Commit | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _hint_file(path: str) -> Path:
    return Path(f"{path}/_delta_log/_last_checkpoint")


def _commit_file(path: str, version: int) -> Path:
    return Path(f"{path}/_delta_log/{version:020d}.json")


def _checkpoint(path: str) -> tuple[int | None, int]:
    """Returns the version of a table's newest checkpoint (None if it has none), and the number of files
    (present and removed) in it."""
    try:
        hint = json.loads(_hint_file(path).read_bytes())
        return int(hint["version"]), int(hint["size"])
    except (OSError, ValueError, KeyError):
        return None, 0
