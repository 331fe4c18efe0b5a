"""A batch of changes, or one shard of it: what its changes met, and what is left of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE
from ..model.sequence import number_of
from .carry import carry
from .columns import OPER, SEQ, carried, letters, one
from .decide import NAMES, Decided, decide, decide_bag, tally
from .events import Bools, Events, Ints, epochs
from .marks import marked
from .null_keys import null_keys
from .rules import Rules
from .source import RowsOf, Source, whole


@dataclass(frozen=True)
class Changes:
    """The change rows of a batch before it is known what they meet; `why`: what is wrong with the values of
    each (NULL: nothing); None: nothing is with any."""

    rows: pa.Table
    events: Events
    why: pa.StringArray | None = None

    @staticmethod
    def of(source: Source, truncates: Sequence[str] | None = None) -> Changes:
        """Numbers the changes, and finds those whose key is NULL; `truncates`: the `change_seq` of all (None:
        the truncates are among the rows)."""
        seq = one(source.rows[SEQ])
        change = np.zeros(len(seq), np.int64)
        change[1:] = np.cumsum(pc.not_equal(seq[1:], seq[:-1]).to_numpy(zero_copy_only=False))
        oper = letters(one(source.rows[OPER]))
        if truncates is None:
            truncates = seq.filter(pa.array(oper == TRUNCATE)).to_pylist()
        epoch, many = epochs(seq, truncates) if truncates else None, len(truncates)
        events = Events(oper, change, source.keys.place, epoch=epoch, truncates=many)
        keys = [(name, one(source.rows[name])) for name in source.key]
        if (bad := null_keys(keys, oper, change)) is None:
            return Changes(source.rows, events)
        return Changes(source.rows, replace(events, bad=bad.rows), bad.why)

    def spoiled(self, why: pa.StringArray) -> Changes:
        """With changes besides whose values are wrong: what is wrong with each row (NULL: nothing). What is
        wrong with a B row is its update's error."""
        said = why if self.why is None else pc.coalesce(why, self.why)
        if said.null_count == len(said):
            return self
        updates = np.flatnonzero((self.events.oper == UPDATE) & (self.events.before >= 0))
        other = np.arange(len(said))
        other[updates], other[self.events.before[updates]] = self.events.before[updates], updates
        said = pc.coalesce(said, said.take(pa.array(other)))
        bad = said.is_valid().to_numpy(zero_copy_only=False)
        return replace(self, events=replace(self.events, bad=bad), why=said)

    def unclear(self, ordinals: tuple[int, ...]) -> tuple[str, str] | None:
        """Of a table without key the first change that does not name its row (`change_seq`), and why; None:
        all do. `ordinals`: the bits of the columns in the column mask."""
        events, there = self.events, carried(self.rows, ordinals)
        paired = np.zeros(int(events.change.max(initial=-1)) + 1, np.bool_)
        paired[events.change[(events.oper == UPDATE) & (events.before >= 0)]] = True
        wrong = {
            "an update has no before image": (events.oper == UPDATE) & (events.before < 0),
            "a before image has no update": (events.oper == BEFORE) & ~paired[events.change],
        }
        if there is not None:
            images = np.isin(events.oper, [UPDATE, BEFORE, DELETE])
            wrong["an image leaves columns out"] = images & ~there.all(axis=1)
        found = [(int(np.argmax(rows)), what) for what, rows in wrong.items() if rows.any()]
        return min((str(self.rows[SEQ][row]), what) for row, what in found) if found else None

    @property
    def first_bad(self) -> str | None:
        """The `change_seq` of the first whose values are wrong; None: all are right."""
        if self.events.bad is None:
            return None
        return str(self.rows[SEQ][int(np.argmax(self.events.bad))])

    def met(self, exists: Bools, rules: Rules, counted: Mapping[str, int] | None = None) -> Batch:
        """Decides all of them; see `decide`."""
        decided = decide(self.events, exists, rules, counted)
        return Batch(self.rows, self.events, decided, rules, self.why)

    def met_copies(self, copies: Ints, rules: Rules, counted: Mapping[str, int] | None = None) -> Batch:
        """The same of a table without key; see `decide_bag`."""
        decided = decide_bag(self.events, copies, rules, counted)
        return Batch(self.rows, self.events, decided, rules, self.why)


@dataclass(frozen=True)
class Batch:
    """The change rows of a batch, in order, and the outcome of each; `why`: what is wrong with the values of
    each (NULL: nothing)."""

    rows: pa.Table
    events: Events
    decided: Decided
    rules: Rules
    why: pa.StringArray | None = None

    @property
    def changes(self) -> Ints:
        """The rows that are changes: all up to the end but B rows."""
        return np.flatnonzero(self.events.oper[: self.decided.upto] != BEFORE)

    def flagged(self, rows: Ints) -> Bools:
        """Which of these rows are flagged."""
        return np.array([self.rules.outcome(n).flagged for n in NAMES])[self.decided.situation[rows]]

    def aside(self) -> Ints:
        """The changes that were flagged and skipped."""
        rows = self.changes
        return rows[self.flagged(rows) & ~self.decided.effective[rows]]

    def upto(self, most: int) -> int:
        """The change number reached, `most` when the batch does not end early; -1: none is."""
        if self.decided.ends is None:
            return most
        end = self.decided.upto
        return max((number_of(s) for s in self.rows[SEQ][max(end - 1, 0) : end].to_pylist()), default=-1)

    @property
    def counts(self) -> dict[str, int]:
        """Changes by operation."""
        found = Counter(self.events.oper[self.changes].tolist())
        return {k: found[k] for k in "IUDT"}

    @property
    def odd(self) -> dict[str, tuple[int, str]]:
        """Situation -> how many changes are in it, and the first `change_seq`; those that are not plain."""
        found = tally(self.events, self.decided)
        return {name: (many, str(self.rows[SEQ][row])) for name, (many, row) in found.items()}

    @property
    def missing(self) -> int:
        """How many changes behind the last truncate look for a row that is not there."""
        lasting = self.decided.situation[self.events.behind(self.truncates)]
        return int(np.isin(lasting, [NAMES.index("U0"), NAMES.index("D0")]).sum())

    @property
    def ends(self) -> tuple[str, str, str] | None:
        """`change_seq`, conflict and policy of the change before which the batch ends; None: it does not."""
        if (row := self.decided.ends) is None:
            return None
        kind = self.rules.outcome(NAMES[self.decided.situation[row]]).conflict
        assert kind is not None  # noqa: S101 - only conflicts end a batch
        return str(self.rows[SEQ][row]), kind, self.decided.policy

    @property
    def why_it_ends(self) -> str | None:
        """What is wrong with the values of that change; None: nothing is."""
        row = self.decided.ends
        return None if row is None or self.why is None else self.why[row].as_py()

    @property
    def truncates(self) -> int:
        """How many truncates there are up to the end: with one, nothing of the rows before it remains."""
        end, epoch = self.decided.ends, self.events.epoch
        return self.events.truncates if end is None or epoch is None else int(epoch[end])

    def last(self, source: Source) -> Ints:
        """Of each key's number the last change that takes part and that no truncate follows; -1: none."""
        effective = self.decided.effective & self.events.behind(self.truncates)
        return replace(self.decided, effective=effective).last(source.keys.place, len(source.last))

    def net(self, source: Source) -> Ints:
        """What is left of them in a table without key, see `Source.net`."""
        effective = self.decided.effective & self.events.behind(self.truncates)
        counts = (np.isin(self.events.oper, [INSERT, UPDATE]) * 2 - 1) * effective
        return np.bincount(source.keys.place, counts, len(source.last)).astype(np.int64)

    def left(self, source: Source, ordinals: tuple[int, ...], rows_of: RowsOf) -> Source:
        """What is left of the changes after the last truncate: one image a key; without key, what `net` says.
        `ordinals`: the bits of the columns in the column mask."""
        if not source.key:
            return replace(source, net=self.net(source), deletes=np.ones(len(source.deletes), np.bool_))
        events, decided = self.events, self.decided
        decided = replace(decided, effective=decided.effective & events.behind(self.truncates))
        there, marks = carried(self.rows, ordinals), source.mark is not None
        if marks:
            source, there = marked(source, events, decided, there)
        return _left(source, events, decided, there, rows_of)


def taken_and_added(source: Source, events: Events) -> tuple[Ints, Ints]:
    """Of each different row of a table without key, by its number: how many copies changes that are all made
    to fit take away, as far as they are there, and how many they add after that.

    A change adds a copy, or takes one if there is one. Whatever the target has, many such steps do what two
    do: take as many as the steps were ever below their start, then add what leads to their end.
    """
    place, steps = source.keys.place, np.isin(events.oper, [INSERT, UPDATE]) * 2 - 1
    order = np.argsort(place, kind="stable")
    steps, first = steps[order], np.searchsorted(place[order], np.arange(len(source.last)))
    sums = np.cumsum(steps)
    start = sums[first] - steps[first]
    take = np.maximum(start - np.minimum.reduceat(sums, first), 0)
    return take, sums[np.append(first[1:], len(sums)) - 1] - start + take


def split(net: Ints) -> tuple[Ints, Ints]:
    """Copies to take away, and to add, where it is known that those to take are there."""
    return np.maximum(-net, 0), np.maximum(net, 0)


def folded(source: Source, events: Events, there: Bools | None, rows_of: RowsOf) -> Source:
    """What is left of changes (numbered: `events`) that are all made to fit, whatever they met: one image a
    key. `there`: which columns each image has; None: all.

    This needs keys that are unique after every single change. A key that the source checks only at the end of
    a transaction (PostgreSQL's deferrable primary keys under REPLICA IDENTITY FULL) may not be used.
    """
    before, updated = events.oper == BEFORE, np.zeros(len(events) + 1, np.bool_)
    updated[events.change[events.oper == UPDATE]] = True
    effective = ~before | ~updated[events.change]
    effective[events.old[events.moves]] = True
    decided = Decided(np.zeros(len(events), np.int64), effective, len(events), None)
    return _left(source, events, decided, there, rows_of)


def _left(source: Source, events: Events, decided: Decided, there: Bools | None, rows_of: RowsOf) -> Source:
    """One image a key; under soft delete (`mark`) those of rows that go are images of rows that stay."""
    imaged, marks = decided.effective, source.mark is not None
    if not marks:
        imaged = imaged & ~np.isin(events.oper, [DELETE, BEFORE])
    if there is None or there[imaged].all():
        deletes = np.zeros_like(source.deletes) if marks else source.deletes
        return replace(source, last=decided.last(source.keys.place, len(source.last)), deletes=deletes)
    return whole(source, carry(events, decided, there, marks=marks), rows_of)
