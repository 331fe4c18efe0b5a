"""Which columns `drop` leaves out, whatever they are called later: columns are known by number.

A task file names columns. One that has, or had, a name under `drop` stays out when the source renames it; so
does a column that takes the name later. To have one that was renamed, name it under `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...lake import log
from ...model.change import Relation
from ...state import ledger
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


class LeftOut:
    """What a mapping leaves out, as a table's layouts come one after the other.

    >>> from tailrace.model.change import Column
    >>> def layout(name): return Relation(1, "s", "t", "d", (Column(name, 2, "text", "text", "string"),))
    >>> out = LeftOut.of(TableMap("s.t", "s.t", drop=("note",)), [layout("note"), layout("memo")])
    >>> out.at(layout("memo")).left_out
    (('memo', 'note'),)
    """

    def __init__(self, wanted: TableMap) -> None:
        self._drop, self._named = frozenset(wanted.drop), {*wanted.columns, *wanted.columns.values()}
        self._numbers: dict[int, str] = {}
        self._last: Relation | None = None

    @staticmethod
    def of(wanted: TableMap, layouts: Iterable[Relation]) -> LeftOut:
        """What is left out after these layouts."""
        made = LeftOut(wanted)
        for one in layouts:
            made.see(one)
        return made

    def see(self, relation: Relation) -> None:
        """Takes in the next layout of the source."""
        if not self._drop:
            return
        last = self._last
        if last is None or last.relid != relation.relid:  # a table that was made again has its own numbers
            self._numbers, last = {}, None
        had = {c.attnum for c in last.columns} if last else set()
        has = {c.attnum for c in relation.columns}
        gone = [self._numbers[n] for n in had - has if n in self._numbers]
        # What capture could not tell has a number below 0, used again when the column is gone.
        self._numbers = {n: name for n, name in self._numbers.items() if n > 0 or n in has}
        for c in relation.columns:
            if c.name in self._drop:
                self._numbers.setdefault(c.attnum, c.name)
            elif gone and c.attnum < 0 and c.attnum not in had:  # it may be the one that is gone
                self._numbers.setdefault(c.attnum, gone[0])
        self._last = relation

    def at(self, relation: Relation) -> TargetLayout:
        """A layout of the target, which follows what was seen."""
        found = [(c.name, self._numbers[c.attnum]) for c in relation.columns if c.attnum in self._numbers]
        return TargetLayout(
            relation, tuple((n, was) for n, was in found if n not in self._drop and n not in self._named)
        )


def layouts_seen(relations: str, baselines: str) -> dict[str, list[tuple[str, Relation]]]:
    """The layouts that a table is known to have had, with the positions (40 hex digits) from which they held,
    in order. Baselines tell of some that no change ever had.

    `relations`, `baselines`: the paths of the relation history and of the baselines' record.
    """
    found = {
        t: [(one.from_position.hex().upper(), one.relation) for one in had]
        for t, had in log.history(relations).items()
    }
    for one in ledger.all_baselines(baselines):
        found.setdefault(one.table, []).append((one.position, one.relation))
    return {table: sorted(had, key=lambda one: one[0]) for table, had in found.items()}


def stays_out(name: str, was: str) -> str:
    """Says that a column is left out under another name."""
    return f"column {name!r} stays out of the target: it was called {was!r} before, which `drop` names"
