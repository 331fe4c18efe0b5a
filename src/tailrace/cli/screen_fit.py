"""A table that truncates nothing: it shows the columns that fit, folds long ones, and if that is not enough
shows each row as a block of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

Cell = str | Text
_LEAST = 14
"""Minimum width of a folded column."""


@dataclass(frozen=True)
class Col:
    """A column: its heading, whether it is a number (right-aligned), may be folded, and when it may be left
    out: the greatest `spare` first, 0 never."""

    name: str
    right: bool = False
    fold: bool = False
    spare: int = 0


@dataclass
class Fit:
    """Rows under columns, with a title above and lines below. `empty` is printed if there are no rows; by
    default, that there are no values of the first column.

    >>> from io import StringIO
    >>> rows = Fit([Col("table"), Col("rows", right=True, spare=1)], [["shop.item", "7"]], title="shop")
    >>> for width in (40, 16, 9):
    ...     there = Console(file=StringIO(), width=width)
    ...     there.print(rows)
    ...     print(there.file.getvalue())
    shop
    ┏━━━━━━━━━━━┳━━━━━━┓
    ┃ table     ┃ rows ┃
    ┡━━━━━━━━━━━╇━━━━━━┩
    │ shop.item │    7 │
    └───────────┴──────┘
    <BLANKLINE>
    shop
    ┏━━━━━━━━━━━┓
    ┃ table     ┃
    ┡━━━━━━━━━━━┩
    │ shop.item │
    └───────────┘
    <BLANKLINE>
    shop
    shop.item
      rows: 7
    <BLANKLINE>
    """

    columns: Sequence[Col]
    rows: list[list[Cell]] = field(default_factory=list)
    title: Cell = ""
    below: Sequence[Cell] = ()
    empty: str = ""

    def add(self, *cells: Cell) -> None:
        """Adds a row."""
        self.rows.append(list(cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield _text(self.title)
        shown = self._shown(options.max_width)
        if not self.rows:
            yield Text(self.empty or f"no {self.columns[0].name}s")
        elif shown:
            yield self._table(shown)
        else:
            yield from self._blocks()
        yield from map(_text, self.below)

    def _shown(self, width: int) -> list[int]:
        """The columns of the table that fit; none if no table fits."""
        shown = list(range(len(self.columns)))
        while self._width(shown) > width:
            most = max(self.columns[n].spare for n in shown)
            if not most:
                return []
            shown = [n for n in shown if self.columns[n].spare < most]
        return shown

    def _width(self, shown: Iterable[int]) -> int:
        return 1 + sum(3 + self._least(n) for n in shown)

    def _least(self, column: int) -> int:
        one = self.columns[column]
        lines = [line for row in self.rows for line in str(row[column]).splitlines()]
        most = max(map(cell_len, [one.name, *lines]))
        return min(most, max(_LEAST, cell_len(one.name))) if one.fold else most

    def _table(self, shown: Sequence[int]) -> Table:
        made = Table()
        for n in shown:
            one = self.columns[n]
            made.add_column(Text(one.name), justify="right" if one.right else "left", no_wrap=not one.fold)
            made.columns[-1].overflow = "fold"
        for row in self.rows:
            made.add_row(*(_text(row[n]) for n in shown))
        return made

    def _blocks(self) -> Iterable[Text]:
        for row in self.rows:
            yield Text(str(row[0]), "bold", overflow="fold")
            for one, cell in zip(self.columns[1:], row[1:], strict=True):
                if str(cell):
                    yield Text.assemble(f"  {one.name}: ", cell, overflow="fold")


def _text(cell: Cell) -> Text:
    """The text unchanged: markup in it is not interpreted."""
    return cell if isinstance(cell, Text) else Text(cell, overflow="fold")
