"""The consoles of commands. At a terminal, lines have its width. In a pipe or file, nothing is wrapped or cut
unless COLUMNS sets a width. A COLUMNS or LINES of 0 means unknown."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console

_WIDE = 10_000


def _forget_unknown() -> None:
    """Takes sizes of 0 out of the environment: rich would print nothing, typer's help and errors neither."""
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "1").strip("0 "):
            del os.environ[name]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        _reader_closed()


def _reader_closed() -> NoReturn:
    """Ends the command with code 0: the reader of its output has closed it, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


@contextmanager
def written() -> Iterator[None]:
    """Writes what the block prints to standard output; ends the command if its reader has closed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_closed()


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console on standard output, or on standard error."""
    _forget_unknown()
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return _Console(stderr=stderr, quiet=quiet, highlight=False, emoji=False, width=_WIDE if piped else None)


out, err = console(), console(stderr=True)


def print_json(value: Any) -> None:
    """Prints one JSON document, for scripts; values of other types are text."""
    with written():
        sys.stdout.write(json_of(value, indent=2) + "\n")


def json_of(value: Any, *, indent: int | None = None, default: Callable[[Any], str] = str) -> str:
    """A value as JSON. NaN and infinities are texts, as Spark writes them; `default` gives the text of a
    value of another type.

    >>> json_of({"a": [1.5, float("-inf")], "b": float("nan")})
    '{"a": [1.5, "-Infinity"], "b": "NaN"}'
    """
    try:
        return json.dumps(value, indent=indent, default=default, allow_nan=False)
    except ValueError:
        return json.dumps(_named(value), indent=indent, default=default, allow_nan=False)


def _named(value: Any) -> Any:
    """A value with texts in place of NaN and infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: _named(v) for k, v in value.items()}
    return [_named(v) for v in value] if isinstance(value, (list, tuple)) else value
