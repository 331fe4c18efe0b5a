"""What each change met: whether its row was there just before it, exact although all are decided at once.

Per key, all its events in their order after the row that the target had: what the last event that says
anything left is what the next one meets. An insert leaves a row, a delete none, an update that is skipped
what was there.

A change of key leaves two keys, and under a policy that passes changes over each may hang on the other. Then
the outcomes of key changes are guessed (all met what they expect), and looked at again under that guess
until it is right. A pass settles at least the earliest wrong guess, so there are at most as many as key
changes, and one more; when there is no conflict among them, one.
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
        counted: how many conflicts were logged before, by kind, for the limits of `rules`; None: the changes
            are a shard of a batch, whose end is not its own to tell.

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
    """The same for a table without key, whose rows are known by all of their values: an update or delete
    meets its row when a copy of it is there. `copies`: of each row's number how many the target has.

    >>> two = Events(np.array(["D", "D", "I"]), np.array([0, 1, 2]), np.array([0, 0, 0]))
    >>> [NAMES[s] for s in decide_bag(two, np.array([1]), Rules.of("strict")).situation]
    ['D1', 'D0', 'I0']
    """
    met = _met_copies(events, copies, rules)
    decided = _decided(events, _places(events, met), met, rules, counted)
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
    # A marked row stays where it is: a key without a living row has none to move away.
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
    takes = (oper != BEFORE) & (oper != TRUNCATE)
    if events.bad is not None:
        takes &= ~events.bad
    takes[out] = True
    line = _Line.of(np.flatnonzero(takes), events, exists)
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
    def of(rows: Ints, events: Events, exists: Bools) -> _Line:
        order = rows[np.argsort(events.life[rows], kind="stable")]
        mine = events.life[order]
        starts = np.ones(len(order), np.bool_)
        starts[1:] = mine[1:] != mine[:-1]
        begin = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        return _Line(order, begin, exists[events.key[order]] & events.begins_met[order])

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

    def counted(self, step: Ints, first: Ints) -> Bools:
        """Per row whether its key had a copy before it; `first`: of each row how many the target had."""
        found = np.zeros(len(step), np.bool_)
        if len(self.order):
            walk = np.cumsum(step[self.order])
            behind = np.concatenate([[0], walk[:-1]])
            start = np.arange(len(walk)) == self.begin
            now = behind - behind[self.begin]  # the walk of the key alone, before each
            have = np.minimum(first[self.order], len(walk))  # more are never taken
            # The least of each key so far: keys lie far enough apart not to touch each other.
            apart = np.cumsum(start) * (4 * len(walk) + 1)
            least = np.minimum.accumulate(have + now - apart) + apart
            found[self.order] = have + now - np.minimum(least, 0) > 0
        return found


def _situations(events: Events, existed: Bools) -> Ints:
    """The situation of each row, see `rules`."""
    found = _places(events, existed)
    moves = events.moves
    out = events.old[moves]
    met = np.array([_PLACE[n] for n in ("K00", "K01", "K10", "K11")])
    found[moves] = found[out] = met[2 * existed[out] + existed[moves]]
    return found


def _places(events: Events, existed: Bools) -> Ints:
    """The situations of changes that name one row."""
    found = np.full(len(events), _PLACE["?"], np.int64)
    found[events.oper == TRUNCATE] = _PLACE["T"]
    for letter in (INSERT, UPDATE, DELETE):
        mine = events.oper == letter
        found[mine] = np.where(existed[mine], _PLACE[f"{letter}1"], _PLACE[f"{letter}0"])
        if events.bad is not None:
            found[mine & events.bad] = _PLACE[f"{letter}!"]
    return found


def plain(oper: npt.NDArray[np.str_]) -> Ints:
    """The places in `NAMES` of changes that met what they expect.

    >>> [NAMES[n] for n in plain(np.array(["I", "U", "D", "T", "X"]))]
    ['I0', 'U1', 'D1', 'T', '?']
    """
    found = np.full(len(oper), _PLACE["?"], np.int64)
    for letter, name in ((INSERT, "I0"), (UPDATE, "U1"), (DELETE, "D1"), (TRUNCATE, "T")):
        found[oper == letter] = _PLACE[name]
    return found


def _met_copies(events: Events, copies: Ints, rules: Rules) -> Bools:
    """Whether the row that a change takes away was there; of inserts never.

    A change adds a copy (I, U) or takes one (D, and B for its update); one that is not there cannot be taken,
    and the count stays at 0. With W the count if it could be negative, the real one is W + max(0, -min W so
    far). Whether an update of a missing row adds its new row hangs on the old one, and is guessed as changes
    of keys are.
    """
    oper, adds = events.oper, np.ones(len(events), np.bool_)
    takes = (oper == DELETE) | (oper == BEFORE)
    updates = np.flatnonzero((oper == UPDATE) & (events.before >= 0))
    inserts = rules.on.get("update_missing") == "apply"
    good = np.ones(len(events), np.bool_) if events.bad is None else ~events.bad
    line = _Line.of(np.flatnonzero((oper != TRUNCATE) & good), events, copies > 0)
    while True:
        step = np.where(takes, -1, np.where(np.isin(oper, [INSERT, UPDATE]) & adds, 1, 0))
        met = takes & line.counted(step, np.where(events.begins_met, copies[events.key], 0))
        if inserts or (adds[updates] == met[events.before[updates]]).all():
            break
        adds[updates] = met[events.before[updates]]
    met[updates] = met[events.before[updates]]
    return np.asarray(met, np.bool_)


def tally(events: Events, decided: Decided) -> dict[str, tuple[int, int]]:
    """Situation -> how many changes before the end are in it, and the first one's row; odd ones alone."""
    rows = np.flatnonzero(events.oper[: decided.upto] != BEFORE)
    mine = decided.situation[rows]
    rows = rows[~_USUAL[mine]]
    mine = decided.situation[rows]
    return {NAMES[s]: (int((mine == s).sum()), int(rows[np.argmax(mine == s)])) for s in np.unique(mine)}
