"""The files of leases: one per term, created exclusively, replaced as a whole; `leases` explains their
use."""

from __future__ import annotations

import json
import platform
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from ..errors import StorageFullError
from ..lake.objects import Objects

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
    pids: str = ""
    born: float = 0.0
    released: bool = False

    @property
    def here(self) -> bool:
        """Whether the holder is, or was, under this kernel: then the operating system's lock shows whether
        it is alive."""
        return self.kernel == kernel()

    @property
    def alive(self) -> bool | None:
        """Whether the operating system shows the holder's process here; None if its process ids are not
        ours."""
        if not self.here or not self.pids or self.pids != this_process()[0]:
            return None
        try:
            there = psutil.Process(self.pid)
            return abs(there.create_time() - self.born) < 1 and there.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    @property
    def ended(self) -> bool:
        """Whether the holder's process is known to have ended."""
        return self.alive is False

    def words(self) -> str:
        """The holder, for a message."""
        return f"process {self.pid} on {self.host}, since {self.since}" if self.pid else self.host


@cache
def kernel() -> str:
    """Identifies this running kernel; a restart of the machine changes it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()} {uuid.getnode():x}"


def this_process() -> tuple[str, float]:
    """Identifies this process under its kernel, with its id: the namespace of the id, and when it started."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink()), psutil.Process().create_time()
    return "", psutil.Process().create_time()


def newest_term(folder: str, name: str) -> int:
    """The highest term of a lease; 0: it was never taken."""
    start = f"{name}.lease."
    return max([0, *(int(n.removeprefix(start)) for n in Objects(folder).names(start))])


def newest(folder: str, name: str) -> Holder | None:
    """The last holder of a lease; None: it was never taken."""
    while term := newest_term(folder, name):
        contents = Objects(folder).read(file_of(name, term))
        if contents is None:  # so old that it was just removed
            continue
        try:
            said = json.loads(contents)
            return Holder(term, **{k: said[k] for k in Holder.__dataclass_fields__ if k != "term"})
        except (ValueError, KeyError, TypeError):  # it is being created
            return Holder(term)
    return None


def make(folder: str, name: str, mine: Holder) -> bool:
    """Creates the file of a new term; False if another process has that term, or a later one."""
    there, file = Objects(folder), file_of(name, mine.term)
    if not there.create(file, _contents(mine)):
        return False
    # An old term whose file was already removed can be created again: it is not valid.
    if newest_term(folder, name) != mine.term:
        there.delete(file)
        return False
    if mine.term > _KEPT:
        there.delete(file_of(name, mine.term - _KEPT))
    return True


def file_of(name: str, term: int) -> str:
    """The name of a term's file."""
    return f"{name}.lease.{term}"


def _contents(mine: Holder) -> bytes:
    return json.dumps({k: v for k, v in asdict(mine).items() if k != "term"}).encode()


def write(folder: str, name: str, mine: Holder) -> None:
    """Replaces the whole file; if there is no space for that, only its time is changed."""
    try:
        Objects(folder).write(file_of(name, mine.term), _contents(mine))
    except StorageFullError:
        Objects(folder).touch(file_of(name, mine.term))


def age(folder: str, name: str, term: int) -> float:
    """Seconds since a term's file was written, by the storage's own clock; 0 if unknown."""
    return Objects(folder).age(file_of(name, term))
