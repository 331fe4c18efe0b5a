"""Capture policies: how much of a table's changes is kept, in OpenEdge's four levels (spec/openedge.md §1.3).

| level | TRACKING | which columns changed | images |
|---|---|---|---|
| 0 | yes | no | none |
| 1 | yes | updates | none |
| 2 | yes | updates | after images; before images only of changed keys, and of tables without key |
| 3 | yes | updates | before and after images, as far as the source sends them |

A column may have a lower level than its table; key columns always have their table's. Tables below level 2
are tracked and not applied: they have no baseline and no target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..model.change import Relation
from ..model.named_columns import NamedColumns
from ..model.patterns import fits

BIT_MAP, MEDIUM, MAXIMUM = 1, 2, 3


@dataclass(frozen=True)
class Policy:
    """The level of a table, and of columns with a lower one.

    Attributes:
        renamed: columns that the source has renamed since they were named, by layout: their names in it, each
            with the one that `columns` has. They keep its level.
    """

    level: int = MAXIMUM
    columns: Mapping[str, int] = field(default_factory=dict)
    renamed: Mapping[Relation, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def following(self, layouts: Iterable[Relation]) -> Policy:
        """The policy for a table that had these layouts, one after the other."""
        named, found = NamedColumns(self.columns), dict[Relation, dict[str, str]]()
        for one in layouts:
            named.see(one)
            found.setdefault(one, {}).update(named.at(one))
        return replace(self, renamed={one: names for one, names in found.items() if names})

    def of(self, relation: Relation) -> list[int]:
        """The level of each column of a layout."""
        was = self.renamed.get(relation, {})
        levels = [self.columns.get(was.get(c.name, c.name), MAXIMUM) for c in relation.columns]
        lower = (self.level if c.key else one for c, one in zip(relation.columns, levels, strict=True))
        return [min(self.level, level) for level in lower]

    def hidden(self, relation: Relation) -> frozenset[str]:
        """Columns whose values are not kept."""
        levels = zip(relation.columns, self.of(relation), strict=True)
        return frozenset(c.name for c, level in levels if level < MEDIUM)


def policy_of(levels: Mapping[str, int], table: str) -> Policy:
    """A table's policy from a task's settings: `schema.table` (with `*`, `?`; the last match wins) and
    `schema.table.column` -> level.

    >>> policy_of({"shop.*": 2, "shop.item": 3, "shop.item.note": 0}, "shop.item")
    Policy(level=3, columns={'note': 0})
    """
    level = MAXIMUM
    for name, one in levels.items():
        if fits(table, name):
            level = one
    start = table + "."
    columns = {n.removeprefix(start): one for n, one in levels.items() if n.startswith(start)}
    return Policy(level, columns)


EVERYTHING = Policy()
"""The policy of tables that no setting names."""
