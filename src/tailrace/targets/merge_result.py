"""What applying one batch to a target did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..engine.rules import Rules


@dataclass(frozen=True)
class ApplyOutcome:
    """What applying one batch did.

    Attributes:
        inserted, updated, deleted: rows of the target, net: a key inserted and deleted in one batch counts
            nowhere, a changed key counts as one delete and one insert.
        version: the target's version that holds the batch (Delta: the commit's, or, when the target had the
            batch already, the newest one without later changes); -1: it is not known.
        plan: a name in `tailrace.targets.plans.PLANS`.
        seconds: wall time.
        missing: deletes and old images of a table without key for which the target had no row.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    version: int = -1
    plan: str = "none"
    seconds: float = 0.0
    missing: int = 0


Ends = tuple[str, str, str]
"""The change before which a batch ends: `change_seq`, conflict, policy."""


@dataclass(frozen=True)
class Expected:
    """The conflicts of a batch; `tally`: situation -> (number of changes, first `change_seq`)."""

    tally: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def flagged(self, rules: Rules) -> int:
        """How many are flagged."""
        return sum(n for s, (n, _) in self.tally.items() if rules.outcome(s).flagged)

    def logged(self, rules: Rules) -> dict[str, int]:
        """How many changes are logged as a conflict, by kind, of the kinds that have a limit."""
        found = dict.fromkeys(rules.limits, 0)
        for situation, (many, _) in self.tally.items():
            kind = rules.outcome(situation).conflict
            if kind in found:
                found[kind] += many
        return found

    def counted(self, rules: Rules, before: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Kind -> conflicts logged before the batch, and with it, of the kinds that have a limit."""
        return {k: (before.get(k, 0), before.get(k, 0) + n) for k, n in self.logged(rules).items()}
