"""The steps of a long command: a bar on a terminal, otherwise a line for each completed step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..model.steps import Steps


@contextmanager
def bar(console: Console, *, quiet: bool = False) -> Iterator[Steps]:
    """Shows steps until the block ends; `quiet`: no output if there is no terminal."""
    if not console.is_terminal:
        yield Steps(lambda words, *_: None if quiet or not words else console.print(words, markup=False))
        return
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as shown:
        mine = shown.add_task("", total=None)

        def draw(words: str, done: int, steps: int) -> None:
            shown.update(mine, completed=done, total=steps or None)
            if words:
                shown.update(mine, description=escape(words))

        yield Steps(draw)
