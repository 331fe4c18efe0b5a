"""The command `schema`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file instead of printing it.")
    ] = None,
) -> None:
    """Print the JSON schema of task files, which editors use to complete and check them."""
    from ..config.task_schema import text

    if output is None:
        sys.stdout.write(text())
    else:
        output.write_text(text(), encoding="utf-8")
