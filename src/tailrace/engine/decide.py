"""Decides for each change whether its row existed just before it; exact, although all changes are decided at
once.

The events of a key follow the target's row in order. An event finds the result of the last effective event.
An insert leaves a row, a delete leaves no row, and a skipped update leaves the row unchanged.

A change of key affects two keys, and under a policy that skips changes each may depend on the other. So the
outcomes of key changes are guessed (all as expected), and decided again under that guess until it is right.
Each pass settles at least the earliest wrong guess, so there are at most as many passes as key changes plus
one. Without conflicts among them, one pass is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE
from .events import Bools, Events, Ints
from .rules import ENDING, PLAIN, SITUATIONS, Outcome, Rules

NAMES = list(SITUATIONS)
_PLACE = {name: place for place, name in enumerate(NAMES)}
_USUAL = np.array([name in PLAIN for name in NAMES])
_SILENT = -1


@dataclass(frozen=True)
class Decided:
    """Outcomes of the changes of a batch.

    Attributes:
        situation: the index in `NAMES` per row; B rows have that of their update, or of `?`.
        effective: whether a row takes part in the write; of B rows, those that move a row away.
        upto: the number of rows before the change at which the batch ends, or of all rows.
        ends: the first row of that change; None if the batch does not end early.
        policy: the policy that ends the batch.
    """

    situation: Ints
    effective: Bools
    upto: int
    ends: int | None
    policy: str = ""

    def last(self, key: Ints, keys: int) -> Ints:
        """Returns for each key number the last effective row; -1 if it has none."""
        found = np.full(keys, -1, np.int64)
        rows = np.flatnonzero(self.effective)
        found[key[rows]] = rows  # NumPy keeps the last of several values for one index
        return found


def decide(events: Events, exists: Bools, rules: Rules, counted: Mapping[str, int] | None = None) -> Decided:
    """Decides all changes.

    Args:
        events: the changes.
        exists: whether the target has a row that is not marked as deleted, per key number.
        rules: how changes are applied.
        counted: the number of conflicts that were logged before, by kind, for the limits of `rules`. None if
            the changes are a shard, which cannot decide where the batch ends.

    >>> two = Events(np.array(["I", "U", "D"]), np.array([0, 1, 2]), np.array([0, 1, 0]))
    >>> met = decide(two, np.array([True, False]), Rules.of("strict"))
    >>> [NAMES[s] for s in met.situation], met.effective.tolist()
    (['I1', 'U0', 'D1'], [False, False, True])
    """
    existed = _existed(events, exists, rules)
    return _decided(events, _situations(events, existed), existed, rules, counted)


def decide_bag(
    events: Events, copies: Ints, rules: Rules, counted: Mapping[str, int] | None = None
) -> Decided:
    """Decides all changes of a keyless table: an update or delete finds its row if a copy of it exists.

    `copies` is the number of copies in the target per row number.

    >>> two = Events(np.array(["D", "D", "I"]), np.array([0, 1, 2]), np.array([0, 0, 0]))
    >>> [NAMES[s] for s in decide_bag(two, np.array([1]), Rules.of("strict")).situation]
    ['D1', 'D0', 'I0']
    """
    met = _copies_existed(events, copies, rules)
    decided = _decided(events, _situations_of_row(events, met), met, rules, counted)
    updates = np.flatnonzero((events.oper == UPDATE) & (events.before >= 0))
    old = events.before[updates]
    decided.effective[old] = decided.effective[updates] & met[old]
    return decided


def _decided(
    events: Events, situation: Ints, existed: Bools, rules: Rules, counted: Mapping[str, int] | None
) -> Decided:
    outcomes = [rules.outcome(name) for name in NAMES]
    effective = np.array([o.effective for o in outcomes])[situation]
    before = events.oper == BEFORE
    moves = events.moves
    effective[before] = False
    # A row marked as deleted is not moved: a key without a living row has none to move.
    there = existed[events.old[moves]] if rules.mode == "soft_delete" else True
    effective[events.old[moves]] = effective[moves] & there
    effective[events.oper == TRUNCATE] = False
    upto = len(events)
    if counted is None:
        return Decided(situation, effective, upto, None)
    ends, policy = _end(np.where(before, _PLACE["?"], situation), outcomes, rules, counted)
    if ends is not None:
        upto = int(np.searchsorted(events.change, events.change[ends]))
        effective[upto:] = False
    return Decided(situation, effective, upto, ends, policy)


def _end(
    situation: Ints, outcomes: list[Outcome], rules: Rules, counted: Mapping[str, int]
) -> tuple[int | None, str]:
    """Returns the first row that ends the batch, by a policy or a limit, and the policy."""
    found = []
    for kind, policy in rules.on.items():
        mine = np.array([o.conflict == kind for o in outcomes])
        limit, then = rules.limits.get(kind, (0, policy))
        left = max(limit - counted.get(kind, 0), 0)
        if then in ENDING and mine[situation].sum() > left:
            found.append((int(np.flatnonzero(mine[situation])[left]), then))
    return min(found) if found else (None, "")


def _existed(events: Events, exists: Bools, rules: Rules) -> Bools:
    """Returns whether each event's key had a row just before it; False for B rows that move nothing."""
    many, oper, moves = len(events), events.oper, events.moves
    out = events.old[moves]
    inserts, writes = rules.on.get("update_missing") == "apply", rules.on.get("insert_exists") == "apply"
    after = np.full(many, _SILENT, np.int8)
    after[oper == INSERT], after[oper == DELETE] = 1, 0
    if inserts:
        after[oper == UPDATE] = 1
    takes = (oper != BEFORE) & (oper != TRUNCATE)
    if events.bad is not None:
        takes &= ~events.bad
    takes[out] = True
    line = _KeyOrder.of(np.flatnonzero(takes), events, exists)
    old_met, new_met = np.ones(len(moves), np.bool_), np.zeros(len(moves), np.bool_)
    for _ in range(len(moves) + 1):
        if len(moves):
            after[out] = np.where(new_met & (not writes), _SILENT, 0)
            after[moves] = np.where(old_met | inserts, 1, _SILENT)
        existed = line.met(after, many)
        # If key changes are always applied, nothing depends on the guess.
        right = (existed[out] == old_met).all() and (existed[moves] == new_met).all()
        if rules.overwrites or right:
            break
        old_met, new_met = existed[out], existed[moves]
    return existed


@dataclass(frozen=True)
class _KeyOrder:
    """Events ordered by key, and by time within a key."""

    order: Ints
    begin: Ints
    first: Bools

    @staticmethod
    def of(rows: Ints, events: Events, exists: Bools) -> _KeyOrder:
        order = rows[np.argsort(events.life[rows], kind="stable")]
        mine = events.life[order]
        starts = np.ones(len(order), np.bool_)
        starts[1:] = mine[1:] != mine[:-1]
        begin = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        return _KeyOrder(order, begin, exists[events.key[order]] & events.begins_met[order])

    def met(self, after: npt.NDArray[np.int8], many: int) -> Bools:
        """Returns per row whether its key had a row before it, left by the last effective event or by the
        target."""
        existed = np.zeros(many, np.bool_)
        if not len(self.order):
            return existed
        said = after[self.order]
        last = np.maximum.accumulate(np.where(said != _SILENT, np.arange(len(said)), -1))
        before = np.concatenate([[-1], last[:-1]])
        existed[self.order] = np.where(before >= self.begin, said[before] == 1, self.first)
        return existed

    def counted(self, step: Ints, first: Ints) -> Bools:
        """Returns per row whether its key had a copy before it; `first` is the target's number of copies per
        row."""
        found = np.zeros(len(step), np.bool_)
        if len(self.order):
            walk = np.cumsum(step[self.order])
            behind = np.concatenate([[0], walk[:-1]])
            start = np.arange(len(walk)) == self.begin
            now = behind - behind[self.begin]  # the sum of this key only, before each event
            have = np.minimum(first[self.order], len(walk))  # more are never removed
            # The minimum of each key so far: offsets keep the values of keys apart.
            apart = np.cumsum(start) * (4 * len(walk) + 1)
            least = np.minimum.accumulate(have + now - apart) + apart
            found[self.order] = have + now - np.minimum(least, 0) > 0
        return found


def _situations(events: Events, existed: Bools) -> Ints:
    """Returns the situation of each row; see `rules`."""
    found = _situations_of_row(events, existed)
    moves = events.moves
    out = events.old[moves]
    met = np.array([_PLACE[n] for n in ("K00", "K01", "K10", "K11")])
    found[moves] = found[out] = met[2 * existed[out] + existed[moves]]
    return found


def _situations_of_row(events: Events, existed: Bools) -> Ints:
    """Returns the situations of changes that affect one row."""
    found = np.full(len(events), _PLACE["?"], np.int64)
    found[events.oper == TRUNCATE] = _PLACE["T"]
    for letter in (INSERT, UPDATE, DELETE):
        mine = events.oper == letter
        found[mine] = np.where(existed[mine], _PLACE[f"{letter}1"], _PLACE[f"{letter}0"])
        if events.bad is not None:
            found[mine & events.bad] = _PLACE[f"{letter}!"]
    return found


def plain(oper: npt.NDArray[np.str_]) -> Ints:
    """Returns the indexes in `NAMES` of changes without conflict.

    >>> [NAMES[n] for n in plain(np.array(["I", "U", "D", "T", "X"]))]
    ['I0', 'U1', 'D1', 'T', '?']
    """
    found = np.full(len(oper), _PLACE["?"], np.int64)
    for letter, name in ((INSERT, "I0"), (UPDATE, "U1"), (DELETE, "D1"), (TRUNCATE, "T")):
        found[oper == letter] = _PLACE[name]
    return found


def _copies_existed(events: Events, copies: Ints, rules: Rules) -> Bools:
    """Returns whether the row that a change removes existed; False for inserts.

    A change adds a copy (I, U) or removes one (D, and B for its update). A copy that does not exist cannot be
    removed, and the count stays at 0. If W is the count that could be negative, the real one is W + max(0,
    -min W so far). Whether an update of a missing row adds its new row depends on the old one; it is guessed
    like key changes.
    """
    oper, adds = events.oper, np.ones(len(events), np.bool_)
    takes = (oper == DELETE) | (oper == BEFORE)
    updates = np.flatnonzero((oper == UPDATE) & (events.before >= 0))
    inserts = rules.on.get("update_missing") == "apply"
    good = np.ones(len(events), np.bool_) if events.bad is None else ~events.bad
    line = _KeyOrder.of(np.flatnonzero((oper != TRUNCATE) & good), events, copies > 0)
    while True:
        step = np.where(takes, -1, np.where(np.isin(oper, [INSERT, UPDATE]) & adds, 1, 0))
        met = takes & line.counted(step, np.where(events.begins_met, copies[events.key], 0))
        if inserts or (adds[updates] == met[events.before[updates]]).all():
            break
        adds[updates] = met[events.before[updates]]
    met[updates] = met[events.before[updates]]
    return np.asarray(met, np.bool_)


def tally(events: Events, decided: Decided) -> dict[str, tuple[int, int]]:
    """Returns the number of changes before the end and the first one's row, per situation with a conflict."""
    rows = np.flatnonzero(events.oper[: decided.upto] != BEFORE)
    mine = decided.situation[rows]
    rows = rows[~_USUAL[mine]]
    mine = decided.situation[rows]
    return {NAMES[s]: (int((mine == s).sum()), int(rows[np.argmax(mine == s)])) for s in np.unique(mine)}
