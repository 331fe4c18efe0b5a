"""What each change met and what becomes of it, in arrays: what `expect` finds with Spark, for a batch that
one task holds.

Per key, all its events in their order after the row that the target had: what the last event that says
anything left is what the next one meets. Outcomes of key changes are guessed, as in `expect`, until the guess
is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..model.change import BEFORE, DELETE, INSERT, UPDATE
from .rules import ENDING, PLAIN, SITUATIONS, Outcome, Rules

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

NAMES = list(SITUATIONS)
_PLACE = {name: place for place, name in enumerate(NAMES)}
_USUAL = np.array([name in PLAIN for name in NAMES])
_SILENT = -1


@dataclass(frozen=True)
class Events:
    """The change rows of a batch without truncates, in order of (`change_seq`, `change_oper`).

    Attributes:
        oper: the operation of each, one letter.
        change: the number of each row's change sequence: 0, 1, ...; B and U of an update have the same.
        key: the number of each row's key.
        bad: which rows are of a change whose values the target cannot hold; None: none is.
    """

    oper: npt.NDArray[np.str_]
    change: Ints
    key: Ints
    bad: Bools | None = None

    def __len__(self) -> int:
        return len(self.oper)

    @cached_property
    def before(self) -> Ints:
        """Of each update its B row, -1 where it has none; of each B row itself; of others -1."""
        many = int(self.change[-1]) + 1 if len(self) else 0
        found = np.full(many, -1, np.int64)
        before = np.flatnonzero(self.oper == BEFORE)
        found[self.change[before]] = before
        mine = (self.oper == UPDATE) | (self.oper == BEFORE)
        return np.where(mine, found[self.change], -1)

    @cached_property
    def old(self) -> Ints:
        """Of each update its B row, when that has another key; else -1."""
        moving = self.oper == UPDATE if self.bad is None else (self.oper == UPDATE) & ~self.bad
        old = np.where(moving, self.before, -1)
        return np.where((old >= 0) & (self.key[old] != self.key), old, -1)

    @cached_property
    def moves(self) -> Ints:
        """The updates that change their key."""
        return np.flatnonzero(self.old >= 0)


@dataclass(frozen=True)
class Decided:
    """What the changes of a batch meet.

    Attributes:
        situation: of each row its place in `NAMES`; B rows have their update's, or that of `?`.
        effective: whether a row takes part in what is written: of B rows those that move a row away.
        upto: how many rows there are before the change at which the batch ends; all, when it does not.
        ends: the first row of that change; None: the batch does not end early.
        policy: the one it ends by.
    """

    situation: Ints
    effective: Bools
    upto: int
    ends: int | None
    policy: str = ""

    def last(self, key: Ints, keys: int) -> Ints:
        """Of each key's number the last row that takes part; -1: none does."""
        found = np.full(keys, -1, np.int64)
        rows = np.flatnonzero(self.effective)
        found[key[rows]] = rows  # NumPy keeps the last of several values for one place
        return found


def decide(events: Events, exists: Bools, rules: Rules, counted: Mapping[str, int] | None = None) -> Decided:
    """Decides all changes.

    Args:
        events: the changes.
        exists: of each key's number whether the target has a (living) row.
        rules: how they are applied.
        counted: how many conflicts were logged before, by kind, for the limits of `rules`.

    >>> two = Events(np.array(["I", "U", "D"]), np.array([0, 1, 2]), np.array([0, 1, 0]))
    >>> met = decide(two, np.array([True, False]), Rules.of("strict"))
    >>> [NAMES[s] for s in met.situation], met.effective.tolist()
    (['I1', 'U0', 'D1'], [False, False, True])
    """
    existed = _existed(events, exists, rules)
    situation = _situations(events, existed)
    outcomes = [rules.outcome(name) for name in NAMES]
    effective = np.array([o.effective for o in outcomes])[situation]
    before = events.oper == BEFORE
    moves = events.moves
    effective[before] = False
    # A marked row stays where it is: a key without a living row has none to move away.
    there = existed[events.old[moves]] if rules.mode == "soft_delete" else True
    effective[events.old[moves]] = effective[moves] & there
    upto = len(events)
    ends, policy = _end(np.where(before, _PLACE["?"], situation), outcomes, rules, counted or {})
    if ends is not None:
        upto = int(np.searchsorted(events.change, events.change[ends]))
        effective[upto:] = False
    return Decided(situation, effective, upto, ends, policy)


def _end(
    situation: Ints, outcomes: list[Outcome], rules: Rules, counted: Mapping[str, int]
) -> tuple[int | None, str]:
    """The first row that ends the batch, by a policy or because a limit is passed, and the policy."""
    found = []
    for kind, policy in rules.on.items():
        mine = np.array([o.conflict == kind for o in outcomes])
        limit, then = rules.limits.get(kind, (0, policy))
        left = max(limit - counted.get(kind, 0), 0)
        if then in ENDING and mine[situation].sum() > left:
            found.append((int(np.flatnonzero(mine[situation])[left]), then))
    return min(found) if found else (None, "")


def _existed(events: Events, exists: Bools, rules: Rules) -> Bools:
    """Whether each event's key had a row just before it; B rows that move nothing meet nothing."""
    many, oper, moves = len(events), events.oper, events.moves
    out = events.old[moves]
    inserts, writes = rules.on.get("update_missing") == "apply", rules.on.get("insert_exists") == "apply"
    after = np.full(many, _SILENT, np.int8)
    after[oper == INSERT], after[oper == DELETE] = 1, 0
    if inserts:
        after[oper == UPDATE] = 1
    takes = oper != BEFORE
    if events.bad is not None:
        takes &= ~events.bad
    takes[out] = True
    line = _Line.of(np.flatnonzero(takes), events.key, exists)
    old_met, new_met = np.ones(len(moves), np.bool_), np.zeros(len(moves), np.bool_)
    for _ in range(len(moves) + 1):
        if len(moves):
            after[out] = np.where(new_met & (not writes), _SILENT, 0)
            after[moves] = np.where(old_met | inserts, 1, _SILENT)
        existed = line.met(after, many)
        # Where changes of keys are made whatever they meet, nothing hangs on the guess.
        right = (existed[out] == old_met).all() and (existed[moves] == new_met).all()
        if rules.overwrites or right:
            break
        old_met, new_met = existed[out], existed[moves]
    return existed


@dataclass(frozen=True)
class _Line:
    """Events key by key, each key's in order."""

    order: Ints
    begin: Ints
    first: Bools

    @staticmethod
    def of(rows: Ints, key: Ints, exists: Bools) -> _Line:
        order = rows[np.argsort(key[rows], kind="stable")]
        mine = key[order]
        starts = np.ones(len(order), np.bool_)
        starts[1:] = mine[1:] != mine[:-1]
        begin = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        return _Line(order, begin, exists[mine])

    def met(self, after: npt.NDArray[np.int8], many: int) -> Bools:
        """Per row whether its key had a row before it: what the last event before left, or the target had."""
        existed = np.zeros(many, np.bool_)
        if not len(self.order):
            return existed
        said = after[self.order]
        last = np.maximum.accumulate(np.where(said != _SILENT, np.arange(len(said)), -1))
        before = np.concatenate([[-1], last[:-1]])
        existed[self.order] = np.where(before >= self.begin, said[before] == 1, self.first)
        return existed


def _situations(events: Events, existed: Bools) -> Ints:
    """The situation of each row, see `rules`."""
    found = np.full(len(events), _PLACE["?"], np.int64)
    for letter in (INSERT, UPDATE, DELETE):
        mine = events.oper == letter
        found[mine] = np.where(existed[mine], _PLACE[f"{letter}1"], _PLACE[f"{letter}0"])
        if events.bad is not None:
            found[mine & events.bad] = _PLACE[f"{letter}!"]
    moves = events.moves
    out = events.old[moves]
    met = np.array([_PLACE[n] for n in ("K00", "K01", "K10", "K11")])
    found[moves] = found[out] = met[2 * existed[out] + existed[moves]]
    return found


def tally(events: Events, decided: Decided) -> dict[str, tuple[int, int]]:
    """Situation -> how many changes before the end are in it, and the first one's row; odd ones alone."""
    rows = np.flatnonzero(events.oper[: decided.upto] != BEFORE)
    mine = decided.situation[rows]
    rows = rows[~_USUAL[mine]]
    mine = decided.situation[rows]
    return {NAMES[s]: (int((mine == s).sum()), int(rows[np.argmax(mine == s)])) for s in np.unique(mine)}
