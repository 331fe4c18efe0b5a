"""Where commands print. At a terminal, lines have its width; into a pipe or file, nothing is wrapped or cut,
unless COLUMNS sets a width."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console

_WIDE = 10_000


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console on standard output, or on standard error."""
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, quiet=quiet, highlight=False, width=_WIDE if piped else None)


out, err = console(), console(stderr=True)


def print_json(value: Any) -> None:
    """Prints one JSON document, for scripts; what JSON does not know is text."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
