"""Columns that a setting names, identified by number after the source renames them."""

from __future__ import annotations

from collections.abc import Collection

from .change import Relation


class NamedColumns:
    """The columns that have, or had, one of some names, over the layouts of a table in order.

    >>> from .change import Column
    >>> def layout(name): return Relation(1, "s", "t", "d", (Column(name, 2, "text", "text", "string"),))
    >>> named = NamedColumns({"note"})
    >>> for one in (layout("note"), layout("memo")): named.see(one)
    >>> named.at(layout("memo"))
    {'memo': 'note'}
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._numbers: dict[int, dict[int, str]] = {}
        self._last: dict[int, Relation] = {}

    def see(self, relation: Relation) -> None:
        """Adds the source's next layout."""
        if not self._names:
            return
        # A table that was created again has other numbers.
        last, numbers = self._last.get(relation.relid), self._numbers.get(relation.relid, {})
        had = {c.attnum for c in last.columns} if last else set()
        has = {c.attnum for c in relation.columns}
        gone = [numbers[n] for n in had - has if n in numbers]
        # An unidentified column has a negative number, which is reused once the column is dropped.
        numbers = {n: name for n, name in numbers.items() if n > 0 or n in has}
        for c in relation.columns:
            if c.name in self._names:
                numbers.setdefault(c.attnum, c.name)
            elif gone and c.attnum < 0 and c.attnum not in had:  # it may be the dropped column
                numbers.setdefault(c.attnum, gone[0])
        self._last[relation.relid], self._numbers[relation.relid] = relation, numbers

    def at(self, relation: Relation) -> dict[str, str]:
        """Returns the columns with other names in a layout: current name to configured name."""
        numbers = self._numbers.get(relation.relid, {})
        named = ((c.name, numbers.get(c.attnum)) for c in relation.columns)
        return {name: was for name, was in named if was is not None and name not in self._names}
