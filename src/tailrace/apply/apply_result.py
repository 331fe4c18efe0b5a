"""Results of applying changes: counts by operation, action and conflict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..engine.rules import Rules
from ..model.positions import ChangeNumber, ChangeRange, order_key
from ..state.ledger import AppliedTable
from ..targets.merge_result import ApplyOutcome, Conflicts
from ..wire.keylog_values import IGNORED

_PLAIN = {"I": "I0", "U": "U1", "D": "D1", "T": "T"}


@dataclass(frozen=True)
class ApplyResult:
    """Result of applying changes of a table, or of a dry run.

    Attributes:
        end: the last change number that was applied; None if nothing was new.
        counts: changes by operation.
        actions: changes by `action_taken`; `ignored` stands for the byte 0.
        conflicts: changes by conflict.
        flagged: the number of flagged changes.
        outcome: the outcome in the target.
        suspended: why the table was suspended; None if it was not.
    """

    end: int | None = None
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys("IUDT", 0))
    actions: Mapping[str, int] = field(default_factory=dict)
    conflicts: Mapping[str, int] = field(default_factory=dict)
    flagged: int = 0
    outcome: ApplyOutcome = field(default_factory=ApplyOutcome)
    suspended: str | None = None


def result_of(
    end: int | None, counts: Mapping[str, int], found: Conflicts, rules: Rules, outcome: ApplyOutcome
) -> ApplyResult:
    """Returns the result of changes up to the number `end`, counted by operation and conflict."""
    left = Counter({k: counts[k] for k in "IUDT"})
    actions: Counter[str] = Counter()
    conflicts: Counter[str] = Counter()
    for situation, (count, _) in found.tally.items():
        result = rules.outcome(situation)
        left["U" if situation[0] == "K" else situation[0]] -= count
        actions[_label(result.action)] += count
        if result.conflict:
            conflicts[result.conflict] += count
    for letter, situation in _PLAIN.items():
        actions[_label(rules.outcome(situation).action)] += left[letter]
    by_kind = {k: counts[k] for k in "IUDT"}
    return ApplyResult(end, by_kind, dict(+actions), dict(conflicts), found.flagged(rules), outcome)


def summed(parts: Iterable[ApplyResult]) -> ApplyResult:
    """The sum of the results of a table's batches, in order, with the version and plan of the last one."""
    found = list(parts) or [ApplyResult()]
    last = max(found, key=lambda one: order_key(one.end))
    numbers = ("inserted", "updated", "deleted", "missing", "seconds")
    outcome = replace(last.outcome, **{n: sum(getattr(d.outcome, n) for d in found) for n in numbers})
    counts, actions, conflicts = (
        dict(sum((Counter(getattr(d, n)) for d in found), Counter()))
        for n in ("counts", "actions", "conflicts")
    )
    counts = {k: counts.get(k, 0) for k in "IUDT"}
    flagged = sum(d.flagged for d in found)
    return ApplyResult(last.end, counts, actions, conflicts, flagged, outcome, found[-1].suspended)


def applied(table: str, done: ApplyResult, numbers: ChangeRange) -> AppliedTable:
    """Returns the record of a batch of these change numbers. The progress is the end of the range if nothing
    was new, and its start if the table was suspended before the first change."""
    out, reached = done.outcome, done.end
    if reached is None:
        reached = numbers.lower if done.suspended is not None else numbers.end
    return AppliedTable(
        table,
        out.version,
        out.inserted,
        out.updated,
        out.deleted,
        out.missing,
        out.plan,
        out.seconds,
        upto=ChangeNumber(reached),
        flagged=done.flagged,
        suspended=done.suspended or "",
        conflicts=done.conflicts,
    )


def _label(action: str) -> str:
    return "ignored" if action == IGNORED else action
