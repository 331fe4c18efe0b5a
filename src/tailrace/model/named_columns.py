"""Columns that a setting names, whatever the source calls them later: they are known by number."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .change import Relation


class NamedColumns:
    """The columns that have, or had, one of some names, as a table's layouts come one after the other.

    >>> from .change import Column
    >>> def layout(name): return Relation(1, "s", "t", "d", (Column(name, 2, "text", "text", "string"),))
    >>> named = NamedColumns.of({"note"}, [layout("note"), layout("memo")])
    >>> named.at(layout("memo"))
    {'memo': 'note'}
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._numbers: dict[int, str] = {}
        self._last: Relation | None = None

    @staticmethod
    def of(names: Collection[str], layouts: Iterable[Relation]) -> NamedColumns:
        """The columns after these layouts."""
        made = NamedColumns(names)
        for one in layouts:
            made.see(one)
        return made

    def see(self, relation: Relation) -> None:
        """Takes in the source's next layout."""
        if not self._names:
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
            if c.name in self._names:
                self._numbers.setdefault(c.attnum, c.name)
            elif gone and c.attnum < 0 and c.attnum not in had:  # it may be the one that is gone
                self._numbers.setdefault(c.attnum, gone[0])
        self._last = relation

    def at(self, relation: Relation) -> dict[str, str]:
        """Those that a layout has under other names: their names in it, each with the one that was named."""
        named = ((c.name, self._numbers.get(c.attnum)) for c in relation.columns)
        return {name: was for name, was in named if was is not None and name not in self._names}
