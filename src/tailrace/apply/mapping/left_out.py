"""Which columns `drop` leaves out, whatever they are called later: columns are known by number.

A task file names columns. One that has, or had, a name under `drop` stays out when the source renames it; so
does a column that takes the name later. To have one that was renamed, name it under `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...model.change import Relation
from ...model.named_columns import NamedColumns
from .table_map import TableMap

TO_HAVE_IT = "to have it, name it under `columns` (`%s: %s`), and `tailrace resync` the table"


@dataclass(frozen=True)
class TargetLayout:
    """A layout that a target follows, before its mapping; `left_out`: columns of it that stay out under a
    name that `drop` does not have, each with the one that it has."""

    relation: Relation
    left_out: tuple[tuple[str, str], ...] = ()

    def map(self, wanted: TableMap) -> TableMap:
        """A mapping as it is for this layout."""
        return replace(wanted, drop=(*wanted.drop, *(name for name, _ in self.left_out)))


class LeftOutColumns:
    """What a mapping leaves out, as a table's layouts come one after the other.

    >>> from tailrace.model.change import Column
    >>> def layout(name): return Relation(1, "s", "t", "d", (Column(name, 2, "text", "text", "string"),))
    >>> out = LeftOutColumns.of(TableMap("s.t", "s.t", drop=("note",)), [layout("note"), layout("memo")])
    >>> out.at(layout("memo")).left_out
    (('memo', 'note'),)
    """

    def __init__(self, wanted: TableMap) -> None:
        self._columns, self._has = NamedColumns(wanted.drop), {*wanted.columns, *wanted.columns.values()}

    @staticmethod
    def of(wanted: TableMap, layouts: Iterable[Relation]) -> LeftOutColumns:
        """What is left out after these layouts."""
        made = LeftOutColumns(wanted)
        for one in layouts:
            made.see(one)
        return made

    def see(self, relation: Relation) -> None:
        """Takes in the next layout of the source."""
        self._columns.see(relation)

    def at(self, relation: Relation) -> TargetLayout:
        """A layout of the target, which follows what was seen."""
        out = ((name, was) for name, was in self._columns.at(relation).items() if name not in self._has)
        return TargetLayout(relation, tuple(out))


def stays_out(name: str, was: str) -> str:
    """Says that a column is left out under another name."""
    return f"column {name!r} stays out of the target: it was called {was!r} before, which `drop` names"
