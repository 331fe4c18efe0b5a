"""The files of leases: one per term, created exclusively, replaced as a whole; `leases` explains their
use."""

from __future__ import annotations

import json
import os
import platform
import threading
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from ..errors import full

PERIOD_S = 30.0
"""Seconds for which a lease is valid."""
_KEPT = 32
"""Number of terms whose files are kept."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, or its last holder if it was `released`; see the module."""

    term: int
    host: str = "a host that has not given its name yet"
    kernel: str = ""
    pid: int = 0
    id: str = ""
    since: str = ""
    period: float = PERIOD_S
    beat: int = -1
    released: bool = False

    @property
    def here(self) -> bool:
        """Whether the holder is, or was, under this kernel: then the operating system's lock shows whether
        it is alive."""
        return self.kernel == kernel()

    def words(self) -> str:
        """The holder, for a message."""
        return f"process {self.pid} on {self.host}, since {self.since}" if self.pid else self.host


@cache
def kernel() -> str:
    """Identifies this running kernel; a restart of the machine changes it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()} {uuid.getnode():x}"


def newest_term(folder: Path, name: str) -> int:
    """The highest term of a lease; 0: it was never taken."""
    start, terms = f"{name}.lease.", [0]
    with suppress(FileNotFoundError):
        names = (file.name for file in folder.iterdir())
        terms += [int(n.removeprefix(start)) for n in names if n.startswith(start)]
    return max(terms)


def newest(folder: Path, name: str) -> Holder | None:
    """The last holder of a lease; None: it was never taken."""
    while term := newest_term(folder, name):
        try:
            text = file_of(folder, name, term).read_text()
        except FileNotFoundError:  # so old that it was just removed
            continue
        try:
            said = json.loads(text)
            return Holder(term, **{k: said[k] for k in Holder.__dataclass_fields__ if k != "term"})
        except (ValueError, KeyError, TypeError):  # it is being created
            return Holder(term)
    return None


def make(folder: Path, name: str, mine: Holder) -> bool:
    """Creates the file of a new term; False if another process has that term, or a later one."""
    file = file_of(folder, name, mine.term)
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "w") as made:
            made.write(_text(mine))
            made.flush()
            os.fsync(made.fileno())
    except OSError:  # others would wait for a file without a name in it
        file.unlink(missing_ok=True)
        raise
    # An old term whose file was already removed can be created again: it is not valid.
    if newest_term(folder, name) != mine.term:
        file.unlink(missing_ok=True)
        return False
    file_of(folder, name, mine.term - _KEPT).unlink(missing_ok=True)
    _draft(file_of(folder, name, mine.term - 1)).unlink(
        missing_ok=True
    )  # left by a process that was killed at that moment
    return True


def file_of(folder: Path, name: str, term: int) -> Path:
    return folder / f"{name}.lease.{term}"


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name}")


def _text(mine: Holder) -> str:
    return json.dumps({k: v for k, v in asdict(mine).items() if k != "term"})


def write(folder: Path, name: str, mine: Holder) -> None:
    """Replaces the whole file; if there is no space for that, only its time is changed."""
    file = file_of(folder, name, mine.term)
    draft = _draft(file)
    try:
        draft.write_text(_text(mine))
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if full(error, where=str(file)) is None:
            raise
        os.utime(file)


def age(folder: Path, file: Path) -> float:
    """Seconds since a file was written, by the storage's own clock; 0 if unknown."""
    probe = folder / f".probe.{os.getpid()}.{threading.get_ident()}"
    try:
        probe.touch()
        return probe.stat().st_mtime - file.stat().st_mtime
    except OSError:
        return 0.0
    finally:
        with suppress(OSError):
            probe.unlink()
