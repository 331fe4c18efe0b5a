"""How the changes of tables are cut: batches into slices, one table's range where its layout changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..lake import log
from ..model.change import Relation
from ..state.baselines import Baseline
from ..state.ledger import Stored


@dataclass(frozen=True)
class Segment:
    """A stretch of one table's changes with one layout: change numbers in (after, upto], positions from
    `position` on; `before` is the layout the target has when the segment begins. `tolerant`: the window of
    the baseline was open, so some of the changes may be in the target's rows already. `logged`: the key log
    is past the changes, which come again: a new baseline, or somebody, has put the target back."""

    after: int
    upto: int
    position: str
    relation: Relation
    before: Relation
    tolerant: bool = False
    logged: bool = False

    def unclear(self, counts: Mapping[str, int]) -> str | None:
        """Why an open window's changes cannot be told from the rows that were read in it; None: they can.

        `counts`: upper bounds of what occurs in them.
        """
        if not self.tolerant:
            return None
        if not self.relation.key:
            return "the table lost its key while its baseline was read in an open window"
        # A moved row's absent columns are those of its old key's row, unless the target has it moved already:
        # which of the two holds cannot be told.
        if counts.get("absent") and counts.get("key_changes"):
            return "keys and large values changed together while its baseline was read in an open window"
        return None


def slices(pending: Sequence[Stored], max_changes: int, max_bytes: int = 1 << 62) -> list[list[Stored]]:
    """Cuts stored batches, in order, into slices of at most so many rows and bytes; none is split."""
    found: list[list[Stored]] = []
    rows = size = 0
    for batch in pending:
        if not found or rows + batch.rows > max_changes or size + batch.size > max_bytes:
            found.append([])
            rows = size = 0
        found[-1].append(batch)
        rows, size = rows + batch.rows, size + batch.size
    return found


def segments(
    history: Sequence[log.Layout], baseline: Baseline | None, after: int, upto: int, log_upto: int = -1
) -> list[Segment]:
    """One table's range (after, upto] cut where its layout changes, where its baseline's window closes, and
    at the change number that its key log has reached (`log_upto`); `history` is that table's, in order."""
    position = baseline.position if baseline else ""
    past = [one for one in history if log.number(one) <= after or one is history[0]]
    current = past[-1].relation
    if baseline and not any(one.from_position.hex().upper() >= position for one in past):
        current = baseline.relation
    coming = [
        one
        for one in history
        if after < log.number(one) <= upto and one.from_position.hex().upper() >= position
    ]
    found: list[Segment] = []
    edges = [(after, current), *[(log.number(one) - 1, one.relation) for one in coming]]
    before = current
    for k, (start, relation) in enumerate(edges):
        end = edges[k + 1][0] if k + 1 < len(edges) else upto
        found.append(Segment(max(start, after), end, position, relation, before))
        before = relation
    closes = (baseline and baseline.closes) or 0
    found = [part for one in found for part in _cut(one, closes, lambda early: replace(early, tolerant=True))]
    return [part for one in found for part in _cut(one, log_upto, lambda early: replace(early, logged=True))]


def _cut(one: Segment, at: int, marked: Callable[[Segment], Segment]) -> list[Segment]:
    """A segment's part up to a change number, marked, and the rest."""
    if max(one.after, 0) >= at:
        return [one]
    first = marked(replace(one, upto=min(one.upto, at)))
    return [first] if one.upto <= at else [first, replace(one, after=at, before=one.relation)]
