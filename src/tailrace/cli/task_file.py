"""The argument TASK of commands: a task file, or the folder that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _file(given: str | Path) -> Path:
    from ..config.task import file_of, load

    found = file_of(Path(given))
    if not found.exists():
        load(found)  # is refused before a command loads all that it needs
    return found


def names_a_task_file(text: str) -> bool:
    """Whether a place is a task file, there or not, and not a folder.

    >>> names_a_task_file("none.yaml"), names_a_task_file("lake/ir_keylog")
    (True, False)
    """
    return Path(text).is_file() or Path(text).suffix in (".yaml", ".yml")


TaskFile = Annotated[
    Path,
    typer.Argument(help="The task file (YAML), or the folder that has one.", metavar="TASK", parser=_file),
]
