"""The columns that `drop` leaves out, also under later names: columns are identified by number.

A task file names columns. A column that has, or had, a name under `drop` stays out after the source renames
it, and so does a column that gets the name later. To replicate a renamed column, name it under `columns`.
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
    """A layout before its mapping.

    Attributes:
        relation: the layout.
        left_out: the columns that stay out under a name that is not in `drop`, each with the name that is.
    """

    relation: Relation
    left_out: tuple[tuple[str, str], ...] = ()

    def map(self, wanted: TableMap) -> TableMap:
        """The mapping for this layout."""
        return replace(wanted, drop=(*wanted.drop, *(name for name, _ in self.left_out)))


class LeftOutColumns:
    """The columns that a mapping leaves out, over the successive layouts of a table.

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
        """The columns that are left out after these layouts."""
        columns = LeftOutColumns(wanted)
        for one in layouts:
            columns.add(one)
        return columns

    def add(self, relation: Relation) -> None:
        """Adds the next layout of the source."""
        self._columns.see(relation)

    def at(self, relation: Relation) -> TargetLayout:
        """A layout, with the columns that stay out of it after the layouts that were added."""
        out = ((name, was) for name, was in self._columns.at(relation).items() if name not in self._has)
        return TargetLayout(relation, tuple(out))


def stays_out(name: str, was: str) -> str:
    """The message that a column is left out under another name."""
    return f"column {name!r} stays out of the target: it was called {was!r} before, which `drop` names"
