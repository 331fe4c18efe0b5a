"""Results of merges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..engine.rules import Rules
from ..lake.delta import AddedFile


@dataclass(frozen=True)
class ApplyOutcome:
    """Effect of a merge on the rows of a target.

    Attributes:
        inserted, updated, deleted: net numbers of rows. A key that is inserted and deleted in one batch is
            not counted; a changed key counts as one delete and one insert.
        version: the target's version with the batch (Delta: that of the commit, or, if the target had the
            batch already, the newest one without later changes); None if it is not known.
        plan: a name in `tailrace.targets.plans.PLANS`.
        seconds: wall time.
        missing: deletes and before images of a keyless table for which the target had no row.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    version: int | None = None
    plan: str = "none"
    seconds: float = 0.0
    missing: int = 0


Ends = tuple[str, str, str]
"""The change before which a batch ends: `change_seq`, conflict, policy."""


@dataclass(frozen=True)
class Conflicts:
    """The conflicts of a batch; `tally`: situation -> (number of changes, first `change_seq`)."""

    tally: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def flagged(self, rules: Rules) -> int:
        """Returns the number of flagged changes."""
        return sum(n for s, (n, _) in self.tally.items() if rules.outcome(s).flagged)

    def logged(self, rules: Rules) -> dict[str, int]:
        """Returns the number of logged conflicts by kind, for the kinds that have a limit."""
        found = dict.fromkeys(rules.limits, 0)
        for situation, (many, _) in self.tally.items():
            kind = rules.outcome(situation).conflict
            if kind in found:
                found[kind] += many
        return found

    def counted(self, rules: Rules, before: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Returns kind -> conflicts logged before the batch and including it, for the kinds with a limit."""
        return {k: (before.get(k, 0), before.get(k, 0) + n) for k, n in self.logged(rules).items()}


@dataclass(frozen=True)
class MergeResult:
    """Result of the merge of a batch.

    Attributes:
        outcome: the effect on the target.
        end: the last change number that was merged; None: the batch ended before its first change.
        counts: the changes by operation.
        tally: situation -> (number of changes, first `change_seq`), of changes that did not find the expected
            row.
        ends: `change_seq`, conflict and policy of the change before which the batch ended; None if it did not
            end early.
        why: the error in the values of that change; None if its values are valid.
        parts: files of the key log that are not committed yet; empty if there are few rows (see `logged`).
        logged: rows of the key log that are in no file yet; None if there are no such rows.
        noted: an earlier attempt has merged the changes, and a note of the target has the result.
    """

    outcome: ApplyOutcome
    end: int | None
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys("IUDT", 0))
    tally: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    ends: Ends | None = None
    parts: tuple[AddedFile, ...] = ()
    why: str | None = None
    logged: pa.Table | None = None
    noted: bool = False
