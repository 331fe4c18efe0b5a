"""Markdown at a terminal: long words in tables are folded, not cut."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, MarkdownElement, TableElement
from rich.table import Table


class _Folded(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for made in super().__rich_console__(console, options):
            if isinstance(made, Table):
                for column in made.columns:
                    column.overflow = "fold"
            yield made


class Page(Markdown):
    """Markdown of which nothing is left out, however narrow the terminal is."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "table_open": _Folded}
