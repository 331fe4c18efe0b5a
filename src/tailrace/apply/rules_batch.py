"""Where changes that are applied under rules come from: somebody's change table, or a range of a task's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..engine.rules import Rules
from ..model.change import ChangeTable, Relation
from ..model.sequence import number_of
from ..model.types import arrow_type
from ..store.tables import widens
from . import incoming, whole_rows
from .expect import Ends, Expected
from .images import col
from .keylog.change_range import ChangeRange
from .plan import TableBatch


@dataclass(frozen=True)
class RulesBatch:
    """Changes with numbers above `after`, what they hold, and what they met.

    `spans`: `found.upto` is where they end, whether a change has that number or not. `tolerant`,
    `looked`, `based`: as in `TableBatch`.
    """

    changes: ChangeTable
    found: incoming.Incoming
    after: int
    spans: bool = False
    expected: Expected = field(default_factory=Expected)
    tolerant: bool = False
    looked: int | None = None
    based: bool = False

    @property
    def table(self) -> str:
        """The table's name."""
        return self.found.relation.table

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.found.upto <= self.after

    @property
    def logged(self) -> ChangeTable:
        """The changes as the key log has them: where there is no key, all columns tell rows apart."""
        changes = self.changes
        return changes if self.found.relation.key else replace(changes, key=list(changes.columns))

    def range(self, rules: Rules) -> ChangeRange:
        """What the key log calls it."""
        after = self.after if self.after >= 0 else self.found.least - 1
        return ChangeRange(self.table, after, self.found.upto, self.expected.flagged(rules))

    def before(self, ends: Ends) -> RulesBatch:
        """The changes before the one at which it ends."""
        seq = col(self.changes.header("change_seq"))
        rest = self.changes.with_df(self.changes.df.where(seq < ends[0]))
        found = replace(incoming.look(rest), relation=self.found.relation)
        if self.spans:
            upto = max(number_of(ends[0]) - 1, self.after)
            found = replace(self.found, upto=upto, counts=found.counts)
        return replace(self, changes=rest, found=found, expected=Expected())


Cut = Callable[[int, int | None], RulesBatch]
"""Gives the changes with numbers above one, up to another (None: all there are)."""


def of_table(
    changes: ChangeTable,
    rules: Rules,
    there: Mapping[str, str] | None = None,
    look: incoming.Incoming | None = None,
) -> Cut:
    """Changes of a change table.

    `there`: columns of the target that keep their type where it is not as wide as the changes', which then
    may have values that it cannot hold. `look`: what a look at all changes finds, if that is known.
    """

    def cut(after: int, upto: int | None) -> RulesBatch:
        fresh = incoming.newer(changes, after, upto)
        found = look if look is not None and fresh is changes else incoming.look(fresh)
        if found.upto >= 0 and not found.relation.key and rules.mode != "archive":
            whole_rows.refuse_marks(changes.name, rules)
            whole_rows.refuse(changes.name, found.wrong)
        return RulesBatch(fresh, replace(found, relation=_held(found.relation, there or {})), after)

    return cut


def _held(relation: Relation, there: Mapping[str, str]) -> Relation:
    """A layout in a target's types, but where the target can follow."""
    columns = []
    for c in relation.columns:
        kind = there.get(c.name, c.type)
        follows = kind == c.type or widens(arrow_type(kind), arrow_type(c.type))
        columns.append(c if follows else replace(c, type=kind))
    return relation.with_columns(columns)


def of_task(batch: TableBatch, after: int, *, exact: bool) -> Cut:
    """A range of a task's changes, with numbers in (`after`, `batch.upto`]; the store has counted them,
    `exact`: and nothing else."""
    changes = replace(batch.changes, name=batch.table)

    def cut(begin: int, upto: int | None) -> RulesBatch:
        begin, end = max(begin, after), batch.upto if upto is None else upto
        whole = (begin, end) == (after, batch.upto)
        mine = changes if whole else incoming.newer(changes, begin, end)
        counts = dict(batch.counts) if whole and exact else incoming.look(mine).counts
        found = incoming.Incoming(batch.relation, end, counts, begin + 1)
        return RulesBatch(mine, found, begin, spans=True, tolerant=batch.tolerant, based=batch.based)

    return cut
