"""Decides which layouts the relation history must store.

A reader of changes uses the newest layout in the history; after a baseline, it uses the baseline's layout
until the history has a later one. So a layout equal to the newest one need not be stored, unless a baseline
had another layout: then the table was altered, loaded, and altered back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..model.change import Relation

History = Callable[[], Iterable[tuple[Relation, bytes]]]
"""Function that returns the layouts of the history with their positions, in order."""


class Announced:
    """The layouts that readers use; `base` may be called from any thread."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._newest: dict[int, tuple[Relation, bytes]] = {}
        self._bases: dict[int, list[tuple[Relation, bytes]]] = {}
        self._look()

    def base(self, relation: Relation, position: bytes) -> bool:
        """Records a baseline: from this position on, readers use its layout.

        Returns False if that is too late, because a later change was announced in another layout before.
        """
        before = self._newest.get(relation.relid)
        if before is None or before[1] < position:
            self._bases[relation.relid] = [*self._bases.get(relation.relid, []), (relation, position)]
            return True
        return _shape(before[0]) == _shape(relation)

    def news(self, relation: Relation, address: bytes) -> bool:
        """Returns whether the history must store the layout that the stream announced for the change at an
        address."""
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
    """Returns the properties of a layout that do not depend on where it was read."""
    return relation.identity, [(c.name, c.type, c.key) for c in relation.columns]
