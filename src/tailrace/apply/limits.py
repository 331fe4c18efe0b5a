"""Policies with a limit: `log` for so many conflicts of a kind, then the table is suspended or apply stops.

The conflicts of a table count from its baseline, and anew after the limit was reached. The counts stand in
the commits of the exceptions table, with those before its newest batch: a batch that a crash sends again
finds the count it had the first time, and ends where it ended then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ
from ..engine.rules import Rules
from .outcomes import among

if TYPE_CHECKING:
    from pyspark.sql import Column

    from .expect import Expected

Ends = tuple[str, str, str]
"""The change before which a batch ends: `change_seq`, conflict, policy."""


def tallied(expected: Expected, rules: Rules) -> dict[str, int]:
    """How many changes of a batch are logged as a conflict, by kind, of the kinds that have a limit."""
    found = dict.fromkeys(rules.limits, 0)
    for situation, (many, _) in expected.tally.items():
        kind = rules.outcome(situation).conflict
        if kind in found:
            found[kind] += many
    return found


def ends(expected: Expected, rules: Rules, counted: Mapping[str, int]) -> Ends | None:
    """The change before which a batch ends by its policies, or because a limit is passed; None: it does not.

    `counted`: how many conflicts of each kind were logged before the batch.
    """
    found = [one] if (one := expected.ends(rules)) else []
    for kind, many in tallied(expected, rules).items():
        limit, then = rules.limits[kind]
        left = max(limit - counted.get(kind, 0), 0)
        if many <= left or expected.odd is None:
            continue
        mine = expected.odd.where(_of(kind, rules)).orderBy(SEQ, OPER)
        row = mine.select(SEQ).offset(left).limit(1).first()
        if row is not None:
            found.append((str(row[0]), kind, then))
    return min(found) if found else None


def _of(kind: str, rules: Rules) -> Column:
    """Whether a change is a conflict of a kind."""
    return among(rules, lambda outcome: outcome.conflict == kind)
