"""How changes in one layout of their source come to their target: what they go through, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BaselineNeededError
from ..model.change import ChangeTable, Relation
from . import ddl
from .mapping.mapped import counts_of, mapped
from .mapping.prepare import Prepared


@dataclass(frozen=True)
class Route:
    """How the changes of one layout come to their target.

    Attributes:
        before, relation: the target's layout before these changes, and with them.
        steps: what changes go through, in order.
    """

    before: Relation
    relation: Relation
    steps: tuple[Prepared, ...] = ()

    @staticmethod
    def of(source: Relation, follows: Relation, made: Prepared | None, before: Relation) -> Route:
        """The route of changes in the layout `source` to a target that follows another one, with its mapping,
        and has the layout `before`."""
        first = ddl.projection(source, follows)
        steps = tuple(one for one in (first, made) if one is not None)
        return Route(before, follows if made is None else made.relation, steps)

    def through(
        self, changes: ChangeTable, counts: Mapping[str, int]
    ) -> tuple[ChangeTable, Mapping[str, int]]:
        """The changes as the target's, and upper bounds of what occurs in them.

        Raises:
            BaselineNeededError: without a key rows are known by all of their values, and the target has a
                column that the changes have not.
        """
        kept = [p.column.name for step in self.steps for p in step.parts if p.absent]
        if kept and not self.relation.key and (counts.get("U") or counts.get("D")):
            raise BaselineNeededError(
                f"{kept[0]!r} was kept when a DDL was ignored, and the table has no key: rows that have a "
                "value there are not found",
                where=self.relation.table,
                hint="`tailrace resync` it (it begins with the source's layout), and let `ddl` apply `drop`",
            )
        for step in self.steps:
            changes, counts = mapped(changes, step, counts), counts_of(counts, step)
        return changes, counts
