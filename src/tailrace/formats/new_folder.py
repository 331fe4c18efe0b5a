"""A folder that a command fills: two commands at once do not get it, and what a command that fails has left
there is not taken for the whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ConfigError

WRITING = "_tailrace_writing"
"""An empty file that is in the folder until everything else is."""
_HINT = "write into a new folder"


def refuse_used(path: str, *, more: bool = False) -> None:
    """Raises ConfigError when a folder is not to be made, is being written, or, unless `more` may come to
    what it has, has something in it."""
    out = Path(path)
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is a file", hint=_HINT)
    if (out / WRITING).exists():
        mine = f"{WRITING} and the files that are not older" if more else "it"
        raise ConfigError(
            f"{out} is not whole: another command writes it, or one did not end",
            hint=f"if none is running, remove {mine}; or {_HINT}",
        )
    if not more and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty", hint=_HINT)


@contextmanager
def filled(path: str, *, more: bool = False) -> Iterator[None]:
    """Gives a folder to this command alone. If it fails, the folder is as it was; one to which `more` was to
    come, and has, says that it is not whole.

    Raises:
        ConfigError: see `refuse_used`.
    """
    out = Path(path)
    refuse_used(path, more=more)
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / WRITING).touch(exist_ok=False)
    except OSError as error:
        refuse_used(path, more=more)  # another command was first
        raise ConfigError(f"{out} cannot be written: {error.strerror}", hint=_HINT) from error
    there = _files(out)
    if there and not more:  # it was filled between the look and the claim
        (out / WRITING).unlink()
        raise ConfigError(f"{out} is not empty", hint=_HINT)
    try:
        yield
    except BaseException:
        if not more:
            _empty(out, whole=made)
        elif _files(out) == there:
            (out / WRITING).unlink()
        raise
    (out / WRITING).unlink()


def _files(out: Path) -> set[tuple[Path, int]]:
    """What is in a folder but for the claim, and when it was written."""
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
