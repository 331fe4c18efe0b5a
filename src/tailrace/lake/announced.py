"""Which layouts the relation history needs: those that its readers would not go by otherwise.

A reader of changes goes by the newest layout in the history, and from a baseline on by that of the baseline,
until the history has a later one. So a layout that equals the newest one is none of its business, unless a
baseline was taken in another one: then the table was altered, loaded, and altered back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..model.change import Relation

History = Callable[[], Iterable[tuple[Relation, bytes]]]
"""Gives the layouts of the history and the positions where they became valid, in order."""


class Announced:
    """The layouts that readers go by; `base` may be called from any thread."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._newest: dict[int, tuple[Relation, bytes]] = {}
        self._bases: dict[int, list[tuple[Relation, bytes]]] = {}
        self._look()

    def base(self, relation: Relation, position: bytes) -> bool:
        """Notes a baseline: from this position on, readers go by its layout. False if that is too late: a
        change from there on was announced before, in another layout."""
        before = self._newest.get(relation.relid)
        if before is None or before[1] < position:
            self._bases[relation.relid] = [*self._bases.get(relation.relid, []), (relation, position)]
            return True
        return _shape(before[0]) == _shape(relation)

    def news(self, relation: Relation, address: bytes) -> bool:
        """Whether the history needs the layout that the stream has announced for the change at an address."""
        relid = relation.relid
        if relid not in self._newest:
            self._look()
        before, bases = self._newest.get(relid), self._bases.pop(relid, [])
        self._bases[relid] = [one for one in bases if one[1] > address]
        passed = [base for base, position in bases if position <= address]
        self._newest[relid] = relation, address
        return before is None or relation != before[0] or any(_shape(b) != _shape(relation) for b in passed)

    def _look(self) -> None:
        for relation, position in self._history():
            self._newest[relation.relid] = relation, position


def _shape(relation: Relation) -> object:
    """What is the same however a layout was learned of."""
    return relation.identity, [(c.name, c.type, c.key) for c in relation.columns]
