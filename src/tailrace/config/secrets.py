"""Values that a task file takes from elsewhere: `${NAME}` from the environment, `${file:PATH}` from a file.

Nothing of what they hold is in any message.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

_NAME = r"\$\{(\w+)\}"
_PLACE = re.compile(rf"\$\{{file:(?P<file>(?:[^{{}}$]|{_NAME})+)\}}|\$\{{(?P<name>\w+)\}}")


def expand(text: str, folder: Path, *, address: bool = False, strict: bool = True) -> str:
    """The text with these references replaced.

    Args:
        text: as the task file has it.
        folder: where relative paths start. A path may have `${NAME}` in it.
        address: what a file holds is percent-encoded, unless it is the whole address. (What a variable holds
            is not: it may be more than one part.)
        strict: otherwise nothing stands for what is not there.

    Raises:
        ValueError: there is no such variable, or the file cannot be read, or is empty.

    >>> os.environ["SHOP_HOST"] = "db"
    >>> expand("postgresql://me@${SHOP_HOST}/shop", Path())
    'postgresql://me@db/shop'
    """
    whole = _PLACE.fullmatch(text) is not None

    def value(found: re.Match[str]) -> str:
        try:
            return held_by(found)
        except ValueError:
            if strict:
                raise
            return ""

    def held_by(found: re.Match[str]) -> str:
        if found["name"]:
            return _variable(found["name"])
        held = _file(re.sub(_NAME, lambda inner: _variable(inner[1]), found["file"]), folder)
        return quote(held, safe="") if address and not whole else held

    return _PLACE.sub(value, text)


def _variable(name: str) -> str:
    if name not in os.environ:
        raise ValueError(f"the environment has no variable {name}")
    return os.environ[name]


def _file(path: str, folder: Path) -> str:
    """The contents of a file, without a trailing newline."""
    try:
        held = (folder / Path(path).expanduser()).read_text("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not UTF-8") from None
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read: {error.strerror}") from None
    held = held.removesuffix("\n").removesuffix("\r")
    if not held:
        raise ValueError(f"the file {path} is empty")
    return held
