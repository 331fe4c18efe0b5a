"""Tasks that are built once a process: each test gets a copy of its own, for a tenth of the time."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class InFolder(Protocol):
    """Something whose files are all next to its task file, and name no path outside of their folder."""

    file: Path


P = ParamSpec("P")
H = TypeVar("H", bound=InFolder)
_BUILT = tempfile.TemporaryDirectory(prefix="tailrace-once-")


def once(build: Callable[Concatenate[Path, P], H]) -> Callable[Concatenate[Path, P], H]:
    """Of what is built in a folder the first one is kept, for the same arguments; the others are its copies."""
    made: dict[Any, H] = {}

    def copied(folder: Path, /, *given: P.args, **named: P.kwargs) -> H:
        asked = (given, tuple(sorted(named.items())))
        if asked not in made:
            made[asked] = build(Path(tempfile.mkdtemp(dir=_BUILT.name)), *given, **named)
        one = copy.copy(made[asked])
        shutil.copytree(one.file.parent, folder, dirs_exist_ok=True)
        one.file = folder / one.file.name
        return one

    return copied
