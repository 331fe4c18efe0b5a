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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import TableNotFoundError

from ..model.positions import ChangeNumber
from . import news
from .objects import Objects
from .reading import dataset
from .storage import is_remote, options_of

MOST, ACTIONS = 600, 100_000
"""The maximum number of cached tables and of their files in total; least recently used ones are evicted. A
table takes 0.1 to 0.3 MB, and 0.6 MB per 1,000 files."""
KEPT_BYTES = 64 << 10
"""The maximum bytes of cached rows."""
FileIdentity = tuple[object, ...]
"""Identity of a file: inode, modification time (ns), bytes; in an object store, its time and tag."""


@dataclass
class _Open:
    """An open table.

    Attributes:
        commit: the file of its version's commit, when it was returned to the cache.
        hint: the file that names the newest checkpoint, at that time.
        actions: the number of files in the newest checkpoint.
        epoch: the table is current while `news.epoch` is this number.
        reached: a version, and the progress of applications in it.
        read: a version, columns (None: all), and their rows.
    """

    table: DeltaTable
    commit: FileIdentity | None = None
    hint: FileIdentity | None = None
    actions: int = 0
    epoch: int | None = None
    read: tuple[int, tuple[str, ...] | None, pa.Table] | None = None
    reached: tuple[int, dict[str, ChangeNumber | None]] = (-1, {})

    def progress(self, app_id: str) -> ChangeNumber | None:
        """Returns the progress of an application in its version; delta-rs reads commits for it."""
        version = int(self.table.version())
        if self.reached[0] != version:
            self.reached = version, {}
        if app_id not in self.reached[1]:
            self.reached[1][app_id] = reached(self.table, app_id)
        return self.reached[1][app_id]

    def committed(self, progress: Mapping[str, int]) -> None:
        """Records the progress of a commit of this process, which made the next version."""
        version = int(self.table.version())
        known = self.reached[1] if self.reached[0] == version else {}
        self.reached = version + 1, {**known, **{app: ChangeNumber(n) for app, n in progress.items()}}

    def rows(self, columns: tuple[str, ...] | None) -> pa.Table:
        """Returns all rows of its version."""
        asked = self.table.version(), columns
        if self.read is None or self.read[:2] != asked:
            made = dataset(self.table, ranges=False).to_table(columns and list(columns))
            self.read = (*asked, made) if made.nbytes <= KEPT_BYTES else None
            return made
        return self.read[2]


class _LogState(NamedTuple):
    """State of a table's log at a version, read by one request to an object store.

    Attributes:
        commit: the file of that version's commit; None if it was removed.
        newer: whether the next version exists.
        hint: the file that names the newest checkpoint.
    """

    commit: FileIdentity | None
    newer: bool
    hint: FileIdentity | None


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
_missing: dict[str, int] = {}
"""Tables in homes of object stores that did not exist at an epoch of `news`."""


def open_table(path: str, version: int | None = None) -> DeltaTable:
    """Opens a table apart from the cache, at a version; None: at the newest one, also to change it.

    Raises:
        TableNotFoundError: the table does not exist.
    """
    if version is None:
        news.opened_apart(path)
    return DeltaTable(path, version=version, storage_options=options_of(path))


@contextmanager
def opened(path: str) -> Iterator[DeltaTable]:
    """Yields a table at its newest version, for exclusive use.

    Raises:
        TableNotFoundError: there is no table.
    """
    with cached(path) as one:
        yield one.table


def whole(path: str, columns: Sequence[str] | None = None) -> tuple[int, pa.Table]:
    """Returns the newest version of a small table, and all of its rows; errors as in `opened`."""
    with cached(path) as one:
        return one.table.version(), one.rows(tuple(columns) if columns else None)


def is_kept(path: str) -> bool:
    """Returns whether a cached table still exists, by one file access."""
    if (one := _kept.get(path)) is None:
        return False
    if one.epoch is not None and news.epoch(path) == one.epoch:
        return True
    return _commit(path, one.table) == one.commit


def progresses(path: str, app_ids: Sequence[str]) -> list[ChangeNumber | None]:
    """Returns the progress of several applications, all from one version; None without progress or table."""
    try:
        with cached(path) as one:
            return [one.progress(app_id) for app_id in app_ids]
    except TableNotFoundError:
        return [None] * len(app_ids)


def exists(path: str) -> bool:
    """Returns whether there is a table at a path."""
    epoch = news.epoch(path)
    if epoch is not None and _missing.get(path) == epoch:
        return False
    if is_kept(path) or DeltaTable.is_deltatable(path, options_of(path)):
        _missing.pop(path, None)
        return True
    if epoch is not None:
        _missing[path] = epoch
    return False


@contextmanager
def cached(path: str) -> Iterator[_Open]:
    """Yields a table at its newest version with what is known of it, for exclusive use; errors as in
    `opened`."""
    if (one := _taken(path)) is None:
        if path in _missing and not exists(path):
            raise TableNotFoundError(f"no table at {path}")
        one = _Open(DeltaTable(path, storage_options=options_of(path)), epoch=news.epoch(path))
    before, epoch = int(one.table.version()), one.epoch
    yield one  # after an error, the table is not cached
    version = int(one.table.version())
    if epoch is not None and version == before and one.commit is not None:
        _kept.give(path, one)
        return
    one.epoch = news.epoch(path)
    there = _log_state(path, version)
    if there.commit is None:
        return
    if there.newer:
        one.epoch = None
    if there.hint is None:
        newest, one.actions = None, 0
    elif there.hint == one.hint:
        newest = None
    else:
        newest, one.actions = _checkpoint(path)
    one.commit, one.hint = there.commit, there.hint if newest is None or newest <= version else None
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
    if one is None:
        return None
    if (epoch := news.epoch(path)) is not None and epoch == one.epoch:
        return one
    one.epoch = epoch
    there = _log_state(path, int(one.table.version()))
    if there.commit != one.commit:
        return None
    try:
        if there.newer:
            one.table.update_incremental()
        elif one.hint != there.hint:
            return None  # the commits after its version may have been removed (`thinning`)
    except Exception:  # noqa: BLE001 - opening the table again raises the error, if there is one
        return None
    return one


def _log_state(path: str, version: int) -> _LogState:
    if not is_remote(path):
        newer = _commit_file(path, version + 1).exists()
        return _LogState(_stat(_commit_file(path, version)), newer, _stat(_hint_file(path)))
    found = Objects(f"{path}/_delta_log").since(f"{version:020d}.json")
    hint = found.get("_last_checkpoint")
    return _LogState(found.get(f"{version:020d}.json"), f"{version + 1:020d}.json" in found, hint)


def _commit(path: str, table: DeltaTable) -> FileIdentity | None:
    """Returns the identity of the commit file of a table's version; None if it was removed."""
    version = int(table.version())
    return _log_state(path, version).commit if is_remote(path) else _stat(_commit_file(path, version))


def _stat(file: Path) -> FileIdentity | None:
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
        contents = Objects(f"{path}/_delta_log").read("_last_checkpoint")
        hint = json.loads(contents or b"{}")
        return int(hint["version"]), int(hint["size"])
    except (OSError, ValueError, KeyError):
        return None, 0
