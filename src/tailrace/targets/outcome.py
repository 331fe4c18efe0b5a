"""What applying one batch to a target did."""

from __future__ import annotations

from dataclasses import dataclass


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
