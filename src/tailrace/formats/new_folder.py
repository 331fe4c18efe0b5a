"""Reserves a folder for one command: a second command is refused, and the output of a failed command is not
read as if it were complete."""

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
"""A file that is in the folder until everything else is complete; the writing command has locked it."""
_ADDS = " adds\n"
"""The end of the file's text while a command adds to tables."""
_HINT = "write into a new folder"


def refuse_used(path: str, start: Start = "new") -> None:
    """Raises ConfigError if a path is not a folder, is incomplete, or has contents that `start` does not
    allow."""
    out = Path(path)
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is a file", hint=_HINT)
    if (out / WRITING).exists():
        raise _incomplete(out, start)
    if start == "new" and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty", hint=_HINT)


def refuse_half(path: str) -> None:
    """Raises ConfigError for tables that a command has not finished writing. Tables to which it adds can be
    read: its unfinished additions are not part of them yet."""
    start = Path(path)
    for folder in (start, *start.absolute().parents[:2]):  # a folder of tables, a table, or a file of one
        claim = folder / WRITING
        if claim.exists() and not claim.read_text().endswith(_ADDS):
            raise ConfigError(
                f"{folder} is incomplete: a command is writing it, or failed",
                where=path,
                hint="wait until it ends; if none is running, write it again",
            )


def _incomplete(out: Path, start: Start) -> ConfigError:
    mine = {
        "new": "it",
        "more": f"{WRITING} and all files that are not older",
        "over": f"{WRITING}, and write all tables in it again",
    }
    return ConfigError(
        f"{out} is incomplete: another command is writing it, or failed",
        hint=f"if none is running, remove {mine[start]}; or {_HINT}",
    )


@contextmanager
def filled(path: str, start: Start = "new") -> Iterator[None]:
    """Reserves a folder for this command. If the command fails, a new folder is as it was before; another one
    is marked as incomplete, if something has been written.

    Raises:
        ConfigError: see `refuse_used`.
    """
    out = Path(path)
    refuse_used(path, start)
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        claim = os.open(out / WRITING, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}", hint=_HINT) from error
    try:
        _lock(claim, out, start)
        there = _files(out)
        try:
            yield
        except BaseException:
            if start == "new":
                _empty(out, whole=is_new)
            elif _files(out) == there:
                (out / WRITING).unlink()
            raise
        (out / WRITING).unlink()
    finally:
        os.close(claim)


def _lock(claim: int, out: Path, start: Start) -> None:
    """Locks the claim, if it is new."""
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _incomplete(out, start) from None
    except OSError:
        pass  # no locks on this file system: the file alone is the claim
    mine = os.fstat(claim)
    if mine.st_size or not mine.st_nlink:  # another command failed, or has just ended
        raise _incomplete(out, start)
    if start == "new" and _files(out):  # it was filled between the check and the claim
        (out / WRITING).unlink()
        raise ConfigError(f"{out} is not empty", hint=_HINT)
    os.write(claim, f"{os.getpid()}{_ADDS if start == 'more' else ''}".encode())


def _files(out: Path) -> set[tuple[Path, int]]:
    """Returns the files of a folder except the claim, and their times."""
    return {(one, one.stat().st_mtime_ns) for one in out.rglob("*") if one != out / WRITING}


def _empty(out: Path, *, whole: bool) -> None:
    """Removes the output of a failing command, the claim last; its own errors are ignored."""
    with suppress(OSError):
        for one in out.iterdir():
            if one.is_dir():
                shutil.rmtree(one)
            elif one != out / WRITING:
                one.unlink()
        (out / WRITING).unlink()
        if whole:
            out.rmdir()
