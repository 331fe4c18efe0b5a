"""Small files that are read and written as a whole: leases, live state, requests between processes.

A folder of them is local or in an object store; the same code serves both, by obstore. A reader never sees a
part of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StorageFullError, StoreLostError, room
from . import storage

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SLOWER = 10.0
"""Factor of the time between two checks of a folder of an object store, where each check is a request."""


def pace(folder: str) -> float:
    """Returns the factor by which pauses between two checks of a folder are longer than in a local one."""
    return SLOWER if storage.is_remote(folder) else 1.0


class Objects:
    """The small files directly in a folder.

    >>> import tempfile
    >>> there = Objects(tempfile.mkdtemp())
    >>> there.create("a.lease", b"mine"), there.create("a.lease", b"other"), there.read("a.lease")
    (True, False, b'mine')
    >>> there.write("a.lease", b"renewed"); there.read("a.lease"), there.names(), there.read("b")
    (b'renewed', ['a.lease'], None)
    >>> there.delete("a.lease"); there.names()
    []

    Every method raises OSError if the storage does not answer (StoreLostError of an object store), and
    StorageFullError if it is full.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        self.remote = storage.is_remote(self.folder)

    @cached_property
    def _store(self) -> ObjectStore:
        options = storage.options_of(self.folder)
        return _opened(self.folder, None if options is None else tuple(sorted(options.items())))

    @property
    def _missing(self) -> bool:
        """Whether it is a local folder that does not exist; reading does not create it."""
        return not (self.remote or "_store" in self.__dict__ or Path(self.folder).is_dir())

    def read(self, name: str) -> bytes | None:
        """Returns the contents of a file; None if there is no such file."""
        if self._missing:
            return None
        with self._errors():
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError:
                return None

    def write(self, name: str, contents: bytes) -> None:
        """Writes or replaces a file durably."""
        self._make_folder()
        with self._errors():
            self._store.put(name, contents)
        self._sync(name)

    def create(self, name: str, contents: bytes) -> bool:
        """Creates a file durably; False if there is one.

        If a store has written it and its answer is lost, the store's client tries again and gets the same
        refusal as for another process's file: so a file with these very contents counts as created.
        """
        from obstore.exceptions import AlreadyExistsError

        self._make_folder()
        with self._errors():
            try:
                self._store.put(name, contents, mode="create")
            except AlreadyExistsError:
                return self.remote and self.read(name) == contents
        self._sync(name)
        return True

    def delete(self, name: str) -> None:
        """Deletes a file, if it exists."""
        if self._missing:
            return
        with self._errors(), suppress(FileNotFoundError):
            self._store.delete(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._meta(name) is not None

    def names(self, start: str = "") -> list[str]:
        """Returns the names of the files in the folder that begin so, in order. (Local files that are being
        written have a `#`.)"""
        if not self.remote:
            with suppress(FileNotFoundError, NotADirectoryError):
                found = [file.name for file in Path(self.folder).iterdir() if file.is_file()]
                return sorted(n for n in found if n.startswith(start) and "#" not in n)
            return []
        with self._errors():
            objects = self._store.list_with_delimiter()["objects"]
        return sorted(one["path"] for one in objects if one["path"].startswith(start))

    def below(self) -> Iterator[tuple[str, int]]:
        """Yields the names and bytes of all files in the folder and its folders."""
        with self._errors():
            for page in self._store.list(chunk_size=1000):
                for one in page:
                    yield one["path"], one["size"]

    def folders(self) -> list[str]:
        """Returns the names of the folders in the folder, in order."""
        with self._errors():
            return sorted(one.rstrip("/") for one in self._store.list_with_delimiter()["common_prefixes"])

    def delete_all(self, names: Sequence[str]) -> None:
        """Deletes files, in order, a thousand with one request."""
        with self._errors():
            for start in range(0, len(names), 1000):
                self._store.delete(list(names[start : start + 1000]))

    def copy(self, name: str, to: str) -> None:
        """Copies a file in the store."""
        with self._errors():
            self._store.copy(name, to)

    def since(self, name: str) -> dict[str, tuple[object, ...]]:
        """Returns the files from a name on in alphabetical order, each with what changes whenever it is
        written; for folders of an object store, by one request per thousand files."""
        before = name[:-1] + chr(ord(name[-1]) - 1) + "~"
        with self._errors():
            pages = self._store.list(offset=before, chunk_size=1000)
            return {one["path"]: (one["last_modified"], one["e_tag"]) for page in pages for one in page}

    def touch(self, name: str) -> None:
        """Makes a file as new as if it was just written; needs no space.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if not self.remote:
            os.utime(Path(self.folder, name))
            return
        if (contents := self.read(name)) is None:
            raise FileNotFoundError(storage.join(self.folder, name))
        self.write(name, contents)

    def written(self, name: str) -> object:
        """Returns what changes whenever a file is written; None if there is no such file."""
        found = self._meta(name)
        return None if found is None else (found["last_modified"], found["e_tag"])

    def age(self, name: str) -> float:
        """Returns the seconds since a file was written, by the storage's own clock; 0 if unknown."""
        probe = f".probe.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            self.write(probe, b"")
            now, then = self._meta(probe), self._meta(name)
            if now is None or then is None:
                return 0.0
            age: timedelta = now["last_modified"] - then["last_modified"]
            return age.total_seconds()
        except (OSError, StorageFullError):
            return 0.0
        finally:
            with suppress(OSError):
                self.delete(probe)

    def _meta(self, name: str) -> Any:
        if self._missing:
            return None
        with self._errors():
            try:
                return self._store.head(name)
            except FileNotFoundError:
                return None

    def _make_folder(self) -> None:
        if not self.remote:
            with room(self.folder):
                Path(self.folder).mkdir(parents=True, exist_ok=True)

    def _sync(self, name: str) -> None:
        """Makes a local file, and its name, durable."""
        if self.remote:
            return
        for path in (Path(self.folder, name), Path(self.folder)):
            with suppress(FileNotFoundError):  # another process has removed it
                sync(path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            with room(self.folder):
                yield
        except BaseError as error:
            with room(self.folder):
                raise StoreLostError(
                    f"the object store does not answer, or refuses: {_first_line(error)}",
                    where=self.folder,
                    hint="check its address and keys (`storage` in the task file), then start again",
                ) from error


def sync(path: Path) -> None:
    """Makes a local file, or the names in a local folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@lru_cache(maxsize=64)
def _opened(folder: str, options: tuple[tuple[str, str], ...] | None) -> ObjectStore:
    from obstore.store import LocalStore, from_url

    if options is None:
        return LocalStore(folder)
    said = dict(options)
    client: Any = {"timeout": "10s"}
    if said.pop("allow_http", ""):
        client["allow_http"] = True
    tries: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=120)}
    made: ObjectStore = from_url(folder, config=said, client_options=client, retry_config=tries)  # type: ignore[call-overload]
    return made
