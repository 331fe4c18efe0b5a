"""Delta tables that stay open: to read new commits costs half of reading a table's log again, and to see that
there are none is a look for one file. Of a small one that was read as a whole, the rows stay, too.

A table is lent to one user at a time; another one meanwhile opens it for itself. What is kept is only used
again if the commit file of its version is the very one that was read: a table that was removed and made again
is opened anew.
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

from .reading import dataset

MOST, ACTIONS = 600, 100_000
"""So many tables are kept, those last used, with so many files in all: a table takes 0.1 to 0.3 MB, and
0.6 MB for each 1,000 files."""
KEPT_BYTES = 64 << 10
"""Rows of more bytes are read each time."""
Commit = tuple[int, int, int]
"""A commit's file: inode, time of its last change (ns), bytes."""


@dataclass
class _Open:
    """A table that is open. `commit`, `hint`, `actions`: its version's, as they were when it was given back;
    `hint` is the file that names the newest checkpoint. `read`: a version, columns (None: all), and their
    rows."""

    table: DeltaTable
    commit: Commit | None = None
    hint: Commit | None = None
    actions: int = 0
    read: tuple[int, tuple[str, ...] | None, pa.Table] | None = None

    def rows(self, columns: tuple[str, ...] | None) -> pa.Table:
        """All rows of its version."""
        asked = self.table.version(), columns
        if self.read is None or self.read[:2] != asked:
            made = dataset(self.table, ranges=False).to_table(columns and list(columns))
            self.read = (*asked, made) if made.nbytes <= KEPT_BYTES else None
            return made
        return self.read[2]


class _Kept:
    """Tables that are open and lent to nobody, the one used last at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._actions = 0

    def get(self, path: str) -> _Open | None:
        """A table, which stays here."""
        with self._lock:
            return self._open.get(path)

    def take(self, path: str) -> _Open | None:
        """A table, which is not here then."""
        with self._lock:
            return self._drop(path)

    def give(self, path: str, one: _Open) -> None:
        """Keeps a table; those that nobody has used for long make room for it."""
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
    """A table at its newest version, for the caller alone.

    Raises:
        TableNotFoundError: there is none.
    """
    with _lent(path) as one:
        yield one.table


def whole(path: str, columns: Sequence[str] | None = None) -> tuple[int, pa.Table]:
    """The newest version of a small table, and all of its rows; errors as `opened`."""
    with _lent(path) as one:
        return one.table.version(), one.rows(tuple(columns) if columns else None)


def is_kept(path: str) -> bool:
    """Whether a table is open that is there still: a look for one file."""
    one = _kept.get(path)
    return one is not None and _commit(path, one.table) == one.commit


@contextmanager
def _lent(path: str) -> Iterator[_Open]:
    one = _taken(path) or _Open(DeltaTable(path))
    yield one  # after an error it is not kept
    if (commit := _commit(path, one.table)) is not None:
        hint = _stat(_hint_file(path))
        newest, one.actions = _checkpoint(path)
        one.commit, one.hint = commit, hint if newest <= one.table.version() else None
        _kept.give(path, one)


def after_commit(table: DeltaTable) -> PostCommitHookProperties:
    """What delta-rs does after the next commit to an open table: a checkpoint if one is due, and only after
    each hundredth commit a search for commits that are older than the table keeps them, which lists the whole
    log."""
    due = int(table.version()) % 100 == 99
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=due)


def reached(table: DeltaTable, app_id: str) -> int:
    """The progress of an application in an open table; -1 if it never began."""
    found = table.transaction_version(app_id)
    return -1 if found is None else int(found)


def _taken(path: str) -> _Open | None:
    """A table that was kept, brought up to date; None: it was not, or is another one now."""
    one = _kept.take(path)
    if one is None or _commit(path, one.table) != one.commit:
        return None
    try:
        if _commit_file(path, one.table.version() + 1).exists():
            one.table.update_incremental()
        elif one.hint != _stat(_hint_file(path)):
            return None  # the commits after its version may be gone (`thinning`)
    except Exception:  # noqa: BLE001 - opening it tells what is wrong, if anything is
        return None
    return one


def _commit(path: str, table: DeltaTable) -> Commit | None:
    """The file of the commit that made a table's version; None: it is not on this machine, or cleaned up."""
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


def _checkpoint(path: str) -> tuple[int, int]:
    """The version of a table's newest checkpoint, and how many files, present and removed, it names; (-1, 0)
    without one."""
    try:
        hint = json.loads(_hint_file(path).read_bytes())
        return int(hint["version"]), int(hint["size"])
    except (OSError, ValueError, KeyError):
        return -1, 0
