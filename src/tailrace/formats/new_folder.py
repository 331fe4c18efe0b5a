"""A folder that one command fills: a second command is refused, and what a failed command has left there is
not read as if it were complete."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from ..errors import ConfigError

Start = Literal["new", "more", "over"]
"""The allowed contents of a folder: nothing; tables to add to; tables to replace."""
WRITING = "_tailrace_writing"
"""A file that is in the folder until everything else is; the command that writes has it locked."""
_ADDS = " adds\n"
"""How the file ends while a command adds to tables."""
_HINT = "write into a new folder"


def refuse_used(path: str, start: Start = "new") -> None:
    """Raises ConfigError when a folder is not to be made, is not whole, or has something in it that must not
    be there."""
    out = Path(path)
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is a file", hint=_HINT)
    if (out / WRITING).exists():
        raise _not_whole(out, start)
    if start == "new" and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty", hint=_HINT)


def refuse_half(path: str) -> None:
    """Raises ConfigError for tables that a command has begun to write and not ended. Tables that it adds to
    can be read: what it has not ended is no part of them yet."""
    place = Path(path)
    for folder in (place, *place.absolute().parents[:2]):  # a folder of tables, a table, or a file of one
        claim = folder / WRITING
        if claim.exists() and not claim.read_text().endswith(_ADDS):
            raise ConfigError(
                f"{folder} is not whole: a command writes it, or one did not end",
                where=path,
                hint="wait for its end; if none is running, write it again",
            )


def _not_whole(out: Path, start: Start) -> ConfigError:
    mine = {
        "new": "it",
        "more": f"{WRITING} and the files that are not older",
        "over": f"{WRITING}, and write all tables in it again",
    }
    return ConfigError(
        f"{out} is not whole: another command writes it, or one did not end",
        hint=f"if none is running, remove {mine[start]}; or {_HINT}",
    )


@contextmanager
def filled(path: str, start: Start = "new") -> Iterator[None]:
    """Gives a folder to this command alone. If it fails, a new folder is as it was; another one says that it
    is not whole, if something has been written.

    Raises:
        ConfigError: see `refuse_used`.
    """
    out = Path(path)
    refuse_used(path, start)
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        claim = os.open(out / WRITING, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}", hint=_HINT) from error
    try:
        _take(claim, out, start)
        there = _files(out)
        try:
            yield
        except BaseException:
            if start == "new":
                _empty(out, whole=made)
            elif _files(out) == there:
                (out / WRITING).unlink()
            raise
        (out / WRITING).unlink()
    finally:
        os.close(claim)


def _take(claim: int, out: Path, start: Start) -> None:
    """Locks the claim, if it is a new one."""
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _not_whole(out, start) from None
    except OSError:
        pass  # there are no locks here: that it is there has to do
    mine = os.fstat(claim)
    if mine.st_size or not mine.st_nlink:  # one did not end, or has just ended
        raise _not_whole(out, start)
    if start == "new" and _files(out):  # it was filled between the look and the claim
        (out / WRITING).unlink()
        raise ConfigError(f"{out} is not empty", hint=_HINT)
    os.write(claim, f"{os.getpid()}{_ADDS if start == 'more' else ''}".encode())


def _files(out: Path) -> set[tuple[Path, int]]:
    """Returns the files of a folder except the claim, and their times."""
    return {(one, one.stat().st_mtime_ns) for one in out.rglob("*") if one != out / WRITING}


def _empty(out: Path, *, whole: bool) -> None:
    """Removes what a command that fails has written, the claim last; why it failed is what is raised."""
    with suppress(OSError):
        for one in out.iterdir():
            if one.is_dir():
                shutil.rmtree(one)
            elif one != out / WRITING:
                one.unlink()
        (out / WRITING).unlink()
        if whole:
            out.rmdir()
