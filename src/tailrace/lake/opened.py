"""Delta tables that stay open: to look for new commits costs a tenth of reading a table's log again.

A table is lent to one user at a time; another one meanwhile opens it for itself. What is kept is only used
again if the commit file of its version is the very one that was read: a table that was removed and made again
is opened anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable

MOST = 600
"""So many tables are kept, those last used; a table of few files takes about 0.1 MB."""
Commit = tuple[int, int, int]
"""A commit's file: inode, time of its last change (ns), bytes."""

_lock = threading.Lock()
_kept: OrderedDict[str, tuple[DeltaTable, Commit]] = OrderedDict()


@contextmanager
def opened(path: str) -> Iterator[DeltaTable]:
    """A table at its newest version, for the caller alone.

    Raises:
        TableNotFoundError: there is none.
    """
    table = _taken(path) or DeltaTable(path)
    yield table  # after an error it is not kept
    if (commit := _commit(path, table)) is not None:
        with _lock:
            _kept[path] = table, commit
            _kept.move_to_end(path)
            while len(_kept) > MOST:
                _kept.popitem(last=False)


def _taken(path: str) -> DeltaTable | None:
    """A table that was kept, brought up to date; None: it was not, or is another one now."""
    with _lock:
        table, commit = _kept.pop(path, (None, None))
    if table is None or _commit(path, table) != commit:
        return None
    try:
        table.update_incremental()
    except Exception:  # noqa: BLE001 - opening it tells what is wrong, if anything is
        return None
    return table


def _commit(path: str, table: DeltaTable) -> Commit | None:
    """The file of the commit that made a table's version; None: it is not on this machine, or cleaned up."""
    try:
        found = Path(f"{path}/_delta_log/{table.version():020d}.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
