"""A folder that a command fills: two commands at once do not get it, and a command that fails leaves nothing
of its own in it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
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
        mine = f"its files that are not older than {WRITING}" if more else "it"
        raise ConfigError(
            f"{out} is not whole: another command writes it, or one was killed while it did",
            hint=f"if none is running, remove {mine}; or {_HINT}",
        )
    if not more and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty", hint=_HINT)


@contextmanager
def filled(path: str, *, more: bool = False) -> Iterator[None]:
    """Gives a folder to this command alone; if it fails, the files that it has written are removed.

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
    there = set(out.rglob("*")) - {out / WRITING}
    if there and not more:  # it was filled between the look and the claim
        (out / WRITING).unlink()
        raise ConfigError(f"{out} is not empty", hint=_HINT)
    try:
        yield
    except BaseException:
        shutil.rmtree(out) if made else _without_new(out, there)
        raise
    (out / WRITING).unlink()


def _without_new(out: Path, there: Collection[Path]) -> None:
    """Removes what has come to a folder, the claim last."""
    new = [one for one in out.rglob("*") if one not in there and one != out / WRITING]
    for one in sorted(new, key=lambda one: len(one.parts), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    (out / WRITING).unlink()
