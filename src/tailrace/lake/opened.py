"""Delta tables that stay open: to read new commits costs half of reading a table's log again, and to see that
there are none is a look for one file.

A table is lent to one user at a time; another one meanwhile opens it for itself. What is kept is only used
again if the commit file of its version is the very one that was read: a table that was removed and made again
is opened anew.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable

MOST, ACTIONS = 600, 100_000
"""So many tables are kept, those last used, with so many files in all: a table takes 0.1 to 0.3 MB, and
0.6 MB for each 1,000 files."""
Commit = tuple[int, int, int]
"""A commit's file: inode, time of its last change (ns), bytes."""

_lock = threading.Lock()
_kept: OrderedDict[str, tuple[DeltaTable, Commit, int]] = OrderedDict()


@contextmanager
def opened(path: str) -> Iterator[DeltaTable]:
    """A table at its newest version, for the caller alone.

    Raises:
        TableNotFoundError: there is none.
    """
    table = _taken(path) or DeltaTable(path)
    yield table  # after an error it is not kept
    if (commit := _commit(path, table)) is not None:
        actions = _actions(path)
        with _lock:
            _kept[path] = table, commit, actions
            _kept.move_to_end(path)
            while len(_kept) > MOST or sum(n for _, _, n in _kept.values()) > ACTIONS:
                _kept.popitem(last=False)


def reached(table: DeltaTable, app_id: str) -> int:
    """The progress of an application in an open table; -1 if it never began."""
    found = table.transaction_version(app_id)
    return -1 if found is None else int(found)


def _taken(path: str) -> DeltaTable | None:
    """A table that was kept, brought up to date; None: it was not, or is another one now."""
    with _lock:
        table, commit, _ = _kept.pop(path, (None, None, 0))
    if table is None or _commit(path, table) != commit:
        return None
    try:
        if _commit_file(path, table.version() + 1).exists():
            table.update_incremental()
    except Exception:  # noqa: BLE001 - opening it tells what is wrong, if anything is
        return None
    return table


def _commit(path: str, table: DeltaTable) -> Commit | None:
    """The file of the commit that made a table's version; None: it is not on this machine, or cleaned up."""
    try:
        found = _commit_file(path, table.version()).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _commit_file(path: str, version: int) -> Path:
    return Path(f"{path}/_delta_log/{version:020d}.json")


def _actions(path: str) -> int:
    """How many files, present and removed, a table's newest checkpoint names; 0 without one."""
    try:
        return int(json.loads(Path(f"{path}/_delta_log/_last_checkpoint").read_bytes())["size"])
    except (OSError, ValueError, KeyError):
        return 0
