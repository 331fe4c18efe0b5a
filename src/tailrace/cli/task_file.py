"""The argument TASK of commands: a task file, or the folder that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _file(given: str | Path) -> Path:
    from ..config.task import file_of

    return file_of(Path(given))


TaskFile = Annotated[
    Path,
    typer.Argument(help="The task file (YAML), or the folder that has one.", metavar="TASK", parser=_file),
]
