"""A table's changes cut into batches: at each new layout, at the end of its baseline's window, and at the
change number that its key log has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..lake import log
from ..model.positions import ChangeRange
from ..state.baselines import Baseline
from ..targets.change_batch import ChangeBatch


def layout_batches(
    table: str,
    history: Sequence[log.Layout],
    baseline: Baseline | None,
    numbers: ChangeRange,
    changes: str,
    logged: int | None = None,
) -> list[ChangeBatch]:
    """Returns the batches of a table's changes in a range, in their order. Each has the layout of the source.

    Args:
        table: the table.
        history: the layouts of the table, in order.
        baseline: the baseline that its target has.
        numbers: the range.
        changes: path of its change table.
        logged: the change number that its key log has reached; None if it has no key log.
    """
    position = baseline.position if baseline else ""
    past = [one for one in history if log.number(one) <= numbers.lower or one is history[0]]
    current = past[-1].relation
    if baseline and not any(one.from_position.hex().upper() >= position for one in past):
        current = baseline.relation
    coming = [
        one
        for one in history
        if numbers.lower < log.number(one) <= numbers.end and one.from_position.hex().upper() >= position
    ]
    ends = [*(log.number(one) - 1 for one in coming), numbers.end]
    ranges = [ChangeRange(start, end) for start, end in zip((numbers.start, *ends), ends, strict=False)]
    found: list[ChangeBatch] = []
    before = current
    for mine, relation in zip(ranges, [current, *(one.relation for one in coming)], strict=True):
        found.append(ChangeBatch(table, relation, mine, changes, position, before))
        before = relation
    closes = (baseline and baseline.closes) or 0
    found = [
        part for one in found for part in _cut(one, closes, lambda early: replace(early, open_window=True))
    ]
    end = -1 if logged is None else logged
    return [part for one in found for part in _cut(one, end, lambda early: replace(early, logged=True))]


def _cut(one: ChangeBatch, at: int, mark: Callable[[ChangeBatch], ChangeBatch]) -> list[ChangeBatch]:
    """Returns the part of a batch up to a change number, marked, and the rest."""
    if max(one.range.lower, 0) >= at:
        return [one]
    first = mark(replace(one, range=one.range.up_to(at)))
    if one.range.end <= at:
        return [first]
    return [first, replace(one, range=one.range.later_than(at), before=one.relation)]
